"""python tests/fuzz/fuzz_drive.py TARGET [--runs N | --seconds S]: mutants of a target, one after
the other, each a function of the seed and its number; with --coverage, by what they reach
(atheris).

Findings are grouped by where they come from, one input of each is kept, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
for _place in (HERE, HERE.parent, HERE.parent / "server"):
    sys.path.insert(0, str(_place))

SLOW = 10.0  # seconds that an input may take
SLACK = 64 << 20  # bytes beyond twice the input


@dataclass
class Tally:
    """What became of the inputs. findings: by where they come from, how many and the first one."""

    n: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[str, tuple[int, bytes, str]] = field(default_factory=dict)

    def found(self, where: str, data: bytes, said: str) -> None:
        n, first, text = self.findings.get(where, (0, data, said))
        self.findings[where] = n + 1, first, text


def targets() -> dict[str, Any]:
    from fuzz_requests import REQUESTS
    from fuzz_targets import TARGETS

    return {**TARGETS, "requests": REQUESTS}


def mutant(corpus: list[bytes], target: Any, seed: int, i: int) -> bytes:
    """The i-th input of a seed; the corpus itself comes first."""
    if i < len(corpus):
        return corpus[i]
    r = Random(f"{seed}:{i}")
    data = target.mutate(r.choice(corpus), r)
    while r.random() < 0.2:
        data = target.mutate(data, r)
    return data


def execute(target: Any, data: bytes, tally: Tally) -> None:
    """Run one input and count what became of it."""
    from fuzz_targets import Finding, is_allowed

    tally.n += 1
    before = _resident() if target.bounded else 0
    began = time.monotonic()
    try:
        target.run(data)
        outcome = "ran"
    except Finding as e:
        outcome = "finding"
        tally.found(str(e)[:60], data, str(e))
    except Exception as e:
        outcome = "refused"
        if not is_allowed(e):
            outcome = "finding"
            tally.found(_where(e), data, "".join(traceback.format_exception(e)[-6:]))
    took = time.monotonic() - began
    if took > SLOW:
        tally.found("slow", data, f"{took:.1f} s")
    if target.bounded:
        grown = _peak() - before
        if grown > 2 * len(data) + SLACK:
            tally.found("memory", data, f"{grown >> 20} MiB for an input of {len(data)} bytes")
    tally.outcomes[outcome] += 1


def _where(e: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(e.__traceback__) if "tests/fuzz" not in f.filename]
    ours = [f for f in frames if "site-packages" not in f.filename] or frames
    last = ours[-1] if ours else None
    place = f"{'/'.join(Path(last.filename).parts[-3:])}:{last.lineno}" if last else "?"
    return f"{type(e).__name__} at {place}"


def _resident() -> int:
    """Bytes of memory in use; the peak is forgotten."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 1 << 62
    return _status("VmRSS:")


def _peak() -> int:
    return _status("VmHWM:")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return 0


def _late(_signal: int, _frame: FrameType | None) -> None:
    from fuzz_targets import Finding

    raise Finding(f"not over after {SLOW:.0f} s")


def drive(
    name: str, runs: int, seconds: float, seed: int, log: Any = None, start: int = 0
) -> Tally:
    """Run inputs until so many ran or the time is over."""
    target, tally = targets()[name], Tally()
    corpus = target.corpus()
    timed = hasattr(signal, "setitimer")
    if timed:
        signal.signal(signal.SIGALRM, _late)
    end, said = time.monotonic() + seconds, time.monotonic()
    for i in range(start, start + runs):
        data = mutant(corpus, target, seed, i)
        if timed:
            signal.setitimer(signal.ITIMER_REAL, SLOW)
        execute(target, data, tally)
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if i % 200 == 199:  # models hold themselves
            gc.collect()
        now = time.monotonic()
        if log and now > said + 30:
            said = now
            print(f"{name}: {tally.n:,} inputs, {dict(tally.outcomes)}", file=log, flush=True)
        if now > end:
            break
    return tally


def coverage(name: str, rest: list[str]) -> None:
    """The same inputs' mutants, those kept that reach something new. rest: libFuzzer's options and
    a folder to keep them in; nothing of gguflow may have been imported before."""
    import atheris

    with atheris.instrument_imports(include=["gguflow"]):
        target = targets()[name]
        corpus = target.corpus()
        for data in corpus:  # what is imported when it is needed, too
            execute(target, data, Tally())
    kept = Path(rest.pop() if rest and not rest[-1].startswith("-") else tempfile.mkdtemp())
    kept.mkdir(parents=True, exist_ok=True)
    for i, data in enumerate(corpus):
        (kept / f"corpus-{i}").write_bytes(data)
    rest = [f"-max_len={4 * max(map(len, corpus))}", *rest, str(kept)]

    def one(data: bytes) -> None:
        tally = Tally()
        execute(target, data, tally)
        for where, (_, _, said) in tally.findings.items():
            raise RuntimeError(f"{where}: {said}")

    def mutate(data: bytes, most: int, number: int) -> bytes:
        r = Random(number)
        out: bytes = target.mutate(data if len(data) > 8 else r.choice(corpus), r)
        return out[:most]

    atheris.Setup([sys.argv[0], *rest], one, custom_mutator=mutate)
    atheris.Fuzz()


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("target")
    p.add_argument("--runs", type=int, default=1 << 40, metavar="N")
    p.add_argument("--seconds", type=float, default=1e9, metavar="S")
    p.add_argument("--seed", type=int, default=0, metavar="N")
    p.add_argument("--start", type=int, default=0, metavar="I", help="begin with the I-th input")
    p.add_argument("--keep", type=Path, metavar="DIR", help="write the first of each finding here")
    p.add_argument("--coverage", action="store_true", help="by coverage; needs atheris")
    args, rest = p.parse_known_args()
    faulthandler.enable()
    if args.coverage:
        coverage(args.target, rest)
        return 0
    if rest or args.target not in targets():
        p.error(f"expected one of {', '.join(sorted(targets()))}")
    began = time.monotonic()
    tally = drive(args.target, args.runs, args.seconds, args.seed, sys.stderr, args.start)
    took = time.monotonic() - began
    print(f"{args.target}: {tally.n:,} inputs in {took:.0f} s, {dict(tally.outcomes)}")
    for i, (where, (n, data, said)) in enumerate(tally.findings.items()):
        print(f"\n--- {n} times: {where}\n{said}")
        if args.keep:
            args.keep.mkdir(parents=True, exist_ok=True)
            (args.keep / f"{args.target}-{args.seed}-{i}").write_bytes(data)
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
