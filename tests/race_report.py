"""python tests/race_report.py LOG...: what racecheck said of kernels with source lines
(GGUFLOW_CUDA_LINES=1), without what it misreads. Exit code 1 for anything else, and for a log that
does not come to its end.

racecheck knows that what comes before an arrival is over for who waits for that phase of a barrier.
It does not for the phase before, which is what a wait for a free place is: it names a program of
forty lines too that does nothing else (docs/verify.md).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

Place = tuple[str, str]  # function and file
FEW, STREAM = "mul_mat_few.cu", "mul_mat_stream.cu"
CLUSTER = ("address_at", "cluster.cuh")
# Where it finds something, and why it is nothing.
MISREAD: dict[frozenset[Place], str] = {
    frozenset({("multiply", FEW), ("add", FEW)}): (
        "a warp writes its sums when `sums_free` says that those of the phase before were read, "
        "and they are read when `sums_full` has all warps' arrivals"
    ),
    frozenset({("multiply", STREAM), ("add", STREAM)}): (
        "the same, where every adding warp arrives at `sums_free` behind its reads"
    ),
    frozenset({CLUSTER, ("Joiner::finish_pending", "mul_mat_integers.cu")}): (
        "the same between blocks of a cluster: arrivals release and waits acquire for all of it"
    ),
    frozenset({CLUSTER}): (
        "a block that is written to has not ended: it ends behind `wait_free`, when all blocks "
        "have read what they were given, and has read its own"
    ),
}
CHAIN, WEIGHTS, BULK = "mul_mat_chain.cu", "columns_weights.cuh", "bulk_copy.cuh"
INTEGERS = {"integers_products.cuh", "integers_weights.cuh"}
# What fills a stage of a ring again, and the files whose functions read what was there.
FILLS: dict[Place, set[str]] = {
    ("copy_bulk", BULK): {"int8_weights.cuh", WEIGHTS, CHAIN, *INTEGERS},
    ("copy_bulk_to_all", BULK): INTEGERS,
    ("copy16_async", "async_copy.cuh"): {WEIGHTS, "expert_columns.cu", "eight.cuh", "signed8.cuh"},
}
RING = (
    "a stage is filled again when its `free` barrier has an arrival of every warp that multiplies, "
    "each behind `__syncwarp` and its reads of the stage, and read when `full` has every arrival "
    "and byte of those who fill it"
)
# The same of weights as fragments: rings that a warp has for itself, and one of a block.
OWN_FILLS: dict[Place, set[str]] = {("copy_bulk", BULK): {"fragments.cuh"}}
OWN_RING = (
    "products have used what was read of a stage before it is filled again, by the warp itself "
    "behind `__syncwarp`, or of a block's ring when its `free` barrier has an arrival of every "
    "warp that multiplies; it is read when the barrier has every byte"
)
_LIBRARY = re.compile(r"(?:Read|Write) access at (?:void )?(nvjet|cutlass|cublas)")
_ACCESS = re.compile(r"\bat (\S.*?)\+0x[0-9a-f]+ in (\S+?):\d+")
_SAYS = re.compile(r"(?<!=)={9}(?: (?!=)(.*)|\s*)$")  # behind what the program writes itself, too
_ENDS = "RACECHECK SUMMARY"
_BESIDE = ("COMPUTE-SANITIZER", _ENDS, "Host Frame", "Saved host", "Target application")


def places_of(record: str) -> frozenset[Place]:
    """Functions and files that a finding names."""
    return frozenset((_name(function), file) for function, file in _ACCESS.findall(record))


def _name(function: str) -> str:
    """Without what it returns, takes and is instantiated with."""
    while (shorter := re.sub(r"<[^<>]*>", "", function)) != function:
        function = shorter
    return function.partition("(")[0].rpartition(" ")[2]


def misread(record: str) -> tuple[str, str] | None:
    """Where, and why it is nothing; None for what may be something."""
    places = places_of(record)
    at = " and ".join(f"{f} ({file})" for f, file in sorted(places))
    if places in MISREAD:
        return at, MISREAD[places]
    if not places and _LIBRARY.search(record):
        return "kernels of a library", "they are not ours"
    writes = places_of("\n".join(x for x in record.split("\n") if "Write access" in x))
    reads = {f for _, f in places - writes if not f.endswith(".h")}  # but those that decode a type
    for fills, why in ((FILLS, RING), (OWN_FILLS, OWN_RING)):
        if len(writes) == 1 and reads and reads <= fills.get(next(iter(writes)), set()):
            ((function, file),) = writes
            return f"{function} ({file}) and reads of a stage", why
    return None


def findings(log: str) -> list[str]:
    """One text each, without hosts' frames."""
    said = [m[1] or "" for line in log.splitlines() if (m := _SAYS.search(line))]
    records = "\n".join(x.strip() for x in said if not any(b in x for b in _BESIDE))
    return [r.strip() for r in records.split("\n\n") if r.strip()]


def main(paths: list[str]) -> int:
    known: Counter[tuple[str, str]] = Counter()
    others: Counter[str] = Counter()
    unfinished = []
    for path in paths:
        log = Path(path).read_text(errors="replace")
        if _ENDS not in log:
            unfinished.append(path)
        for record in findings(log):
            found = misread(record)
            if found is not None:
                known[found] += 1
            else:
                others[record] += 1
    for (where, why), n in known.items():
        print(f"misread {n} times: {where}: {why}")
    for record, n in others.most_common():
        print(f"{n} times:\n{record}")
    for path in unfinished:
        print(f"{path}: no summary, the process did not come to its end")
    return 1 if others or unfinished else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
