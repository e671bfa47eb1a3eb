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
FEW, CLUSTER = "mul_mat_few.cu", ("address_at", "cluster.cuh")
# Where it finds something, and why it is nothing.
MISREAD: dict[frozenset[Place], str] = {
    frozenset({("multiply", FEW), ("add", FEW)}): (
        "a warp writes its sums when `sums_free` says that those of the phase before were read, "
        "and they are read when `sums_full` has all warps' arrivals"
    ),
    frozenset({CLUSTER, ("Joiner::finish_pending", "mul_mat_integers.cu")}): (
        "the same between blocks of a cluster: arrivals release and waits acquire for all of it"
    ),
    frozenset({CLUSTER}): (
        "a block that is written to has not ended: it ends behind `wait_free`, when all blocks "
        "have read what they were given, and has read its own"
    ),
}
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


def findings(log: str) -> list[str]:
    """One text each, without hosts' frames."""
    said = [m[1] or "" for line in log.splitlines() if (m := _SAYS.search(line))]
    records = "\n".join(x.strip() for x in said if not any(b in x for b in _BESIDE))
    return [r.strip() for r in records.split("\n\n") if r.strip()]


def main(paths: list[str]) -> int:
    known: Counter[frozenset[Place]] = Counter()
    others: Counter[str] = Counter()
    unfinished = []
    for path in paths:
        log = Path(path).read_text(errors="replace")
        if _ENDS not in log:
            unfinished.append(path)
        for record in findings(log):
            places = places_of(record)
            if places in MISREAD:
                known[places] += 1
            else:
                others[record] += 1
    for places, n in known.items():
        where = " and ".join(f"{f} ({file})" for f, file in sorted(places))
        print(f"misread {n} times: {where}: {MISREAD[places]}")
    for record, n in others.most_common():
        print(f"{n} times:\n{record}")
    for path in unfinished:
        print(f"{path}: no summary, the process did not come to its end")
    return 1 if others or unfinished else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
