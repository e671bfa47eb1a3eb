"""What the GPU tests launched under a tool, and what is left (tests/sanitize_gpu.sh).

    python tests/gpu_coverage.py report FOLDER [--plain FILE] [--before FILE]
    python tests/gpu_coverage.py order PLAIN [--before FILE]
    python tests/gpu_coverage.py passed FILE

A run leaves FOLDER/covered.json: how every test ended, how long it took, and which kernels it
launched. A test counts when it passed in a process whose log comes to its end. --plain: that of a
run without a tool; kernels that it launched and this one did not are named, and are an error.
--before: that of a run that this one goes on with.
order: tests by which most kernels that are not yet launched are launched soonest, then the others.
passed: those that need not run again.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ENDS = "SUMMARY:"  # a tool's last line
NAMED = 60  # tests, and kernels, at most
START = 0.3  # seconds a test takes at least under a tool


@dataclass(frozen=True)
class Ran:
    """outcome: passed, failed, skipped, unfinished (it took too long), or untold: what it launched
    may have had findings that the tool did not get to tell."""

    outcome: str
    seconds: float
    kernels: tuple[str, ...]


def ran(folder: Path, has_tool: bool) -> dict[str, Ran]:
    """Test -> how it ended in this run."""
    found: dict[str, Ran] = {}
    for path in sorted(folder.glob("*.jsonl")):
        log = path.with_suffix(".log").read_text(errors="replace")
        is_told = not has_tool or ENDS in log
        for line in path.read_text().splitlines():
            r = json.loads(line)
            outcome = r["outcome"] if is_told or r["outcome"] != "passed" else "untold"
            if r["test"] not in found or outcome == "passed":
                found[r["test"]] = Ran(outcome, r["seconds"], tuple(r["kernels"]))
    return found


def launched(tests: dict[str, Ran]) -> set[str]:
    return {k for r in tests.values() if r.outcome == "passed" for k in r.kernels}


def write(path: Path, tests: dict[str, Ran]) -> None:
    """Kernels once, and those of a test by number."""
    names = sorted({k for r in tests.values() for k in r.kernels})
    at = {k: i for i, k in enumerate(names)}
    rows = {t: (r.outcome, r.seconds, [at[k] for k in r.kernels]) for t, r in sorted(tests.items())}
    path.write_text(json.dumps({"kernels": names, "tests": rows}, separators=(",", ":")))


def read(path: Path) -> dict[str, Ran]:
    """Raises OSError, ValueError and KeyError for what is no such file."""
    data = json.loads(path.read_text())
    names = data["kernels"]
    return {t: Ran(o, s, tuple(names[i] for i in ks)) for t, (o, s, ks) in data["tests"].items()}


def order(plain: dict[str, Ran], before: dict[str, Ran]) -> list[str]:
    """A greedy cover of all kernels that were not launched before, then the other tests, short
    ones first; by the time they took before, if they were run."""
    wanted = launched(plain) - launched(before)
    seconds = {t: max(r.seconds, before[t].seconds if t in before else 0) for t, r in plain.items()}
    left = {t: set(r.kernels) & wanted for t, r in plain.items()}
    worth = [(-len(ks) / (START + seconds[t]), t) for t, ks in left.items() if ks]
    heapq.heapify(worth)
    first: dict[str, None] = {}
    while wanted and worth:
        _, test = heapq.heappop(worth)
        new = left[test] & wanted
        now = -len(new) / (START + seconds[test])
        if new and worth and now > worth[0][0]:  # others have taken some of its kernels
            heapq.heappush(worth, (now, test))
        elif new:
            first[test] = None
            wanted -= new
    rest = [t for t in plain if t not in first]
    return [*first, *sorted(rest, key=lambda t: round(2 * seconds[t]))]


def report(tests: dict[str, Ran], plain: dict[str, Ran] | None) -> bool:
    """Prints it; whether something is missing."""
    counts = Counter(r.outcome for r in tests.values())
    seconds = sum(r.seconds for r in tests.values())
    told = ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common())
    print(f"tests: {told}; {seconds:.0f} s of processes")
    is_bad = any(r.outcome not in ("passed", "skipped") for r in tests.values())
    for outcome in ("failed", "unfinished", "untold"):
        for t in [t for t, r in tests.items() if r.outcome == outcome][:NAMED]:
            print(f"{outcome} after {tests[t].seconds:.0f} s: {t}")
    mine = launched(tests)
    if plain is None:
        print(f"kernels launched: {len(mine)}")
        return is_bad
    wanted = launched(plain)
    print(f"kernels launched plainly: {len(wanted)}, of these under the tool: {len(wanted & mine)}")
    for k in sorted(wanted - mine)[:NAMED]:
        print(f"not launched: {k}")
    left = [t for t, r in plain.items() if r.outcome == "passed"
            and (t not in tests or tests[t].outcome != "passed")]  # fmt: skip
    print(f"tests that pass plainly: {sum(r.outcome == 'passed' for r in plain.values())}, "
          f"not yet under the tool: {len(left)}")  # fmt: skip
    return is_bad or bool(wanted - mine)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="What the GPU tests launched under a tool.")
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("report")
    made.add_argument("folder", type=Path)
    made.add_argument("--tool", action="store_true", help="logs have a tool's summary")
    made.add_argument("--plain", type=Path)
    made.add_argument("--before", type=Path)
    for name in ("order", "passed"):
        made = commands.add_parser(name)
        made.add_argument("file", type=Path)
        made.add_argument("--before", type=Path)
    args = parser.parse_args(argv)
    before = read(args.before) if args.before else {}
    if args.command != "report":
        tests = read(args.file)
        over = (t for t, r in tests.items() if r.outcome in ("passed", "skipped"))
        print("\n".join(over if args.command == "passed" else order(tests, before)))
        return 0
    tests = dict(before)
    now = ran(args.folder, args.tool)
    tests |= {t: r for t, r in now.items() if t not in tests or tests[t].outcome != "passed"}
    write(args.folder / "covered.json", tests)
    return int(report(tests, read(args.plain) if args.plain else None))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
