"""`gguflow bench --kernels`: single kernels on cold caches, beside their roofline and libraries."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gguflow import __version__

from .bench_output import OUTPUTS, Output
from .columns import peaks_line
from .errors import OK, UsageError
from .load import note
from .stream import write

if TYPE_CHECKING:
    from gguflow.engine.kernel_bench import KernelCase

_COLUMNS = {"us": 10, "GB/s": 8, "GFLOP/s": 10, "roof us": 10, "of roof": 8, "by": 7,
            "library": 7, "its us": 10, "ratio": 6}  # fmt: skip


def run_kernels(args: Namespace) -> int:
    """Time every case whose name matches args.kernels, on args.backend."""
    from gguflow.engine.backends.base import find_backend
    from gguflow.engine.kernel_bench import KernelTimer
    from gguflow.engine.profile.machine import machine_name

    cases = matching(args.kernels)
    threads = args.threads[0] if args.threads else None
    given = {"device": args.device, "n_threads": threads, "equal_bits": args.equal_bits}
    try:
        backend = find_backend(args.backend, given)
    except LookupError as e:
        raise UsageError(f"--backend {args.backend}: {e.args[0]}") from None
    timer = KernelTimer(backend)
    able = [c for c in cases if timer.supports(c)]
    for op in dict.fromkeys(c.op for c in cases if not timer.supports(c)):
        note(f"{op}: some or all of its cases have no kernel on {args.backend}")
    note(f"{args.backend}: {backend.describe()}; {peaks_line(timer.peaks)}")
    timer.prepare(able)
    facts = {"build_commit": f"gguflow {__version__}", "cpu_info": machine_name(),
             "backend": args.backend, "device": backend.describe()}  # fmt: skip
    out = KernelTable(able) if args.output == "md" else OUTPUTS[args.output]()
    try:
        for case in able:
            try:
                t = timer.measure(case)
            except MemoryError as e:
                note(f"{case.name}: {e}")
                continue
            rates = {"gbs": t.gbs, "gflops": t.gflops, "of_roof": t.of_roof, "speedup": t.speedup}
            out.add({**facts, **asdict(t), **rates})
    finally:
        out.end()
    return OK


def matching(pattern: str) -> list[KernelCase]:
    """The cases in whose name the regular expression is found. Raises UsageError for none."""
    from gguflow.engine.kernel_bench import all_cases

    try:
        wanted = re.compile(pattern, re.IGNORECASE)
    except re.error as e:
        raise UsageError(f"--kernels {pattern}: bad pattern: {e}") from None
    cases = list(all_cases())
    found = [c for c in cases if wanted.search(c.name)]
    if not found:
        ops = ", ".join(dict.fromkeys(c.op for c in cases))
        raise UsageError(f"--kernels {pattern}: matches nothing; ops are {ops}")
    return found


class KernelTable(Output):
    """A table a person reads, a line as soon as a kernel is timed."""

    def __init__(self, cases: list[KernelCase]) -> None:
        self._width = max((len(c.name) for c in cases), default=0)
        self._row("kernel", dict(zip(_COLUMNS, _COLUMNS, strict=True)))
        rules = {name: "-" * (width - 1) + ":" for name, width in _COLUMNS.items()}
        self._row("-" * self._width, rules)

    def add(self, result: dict[str, Any]) -> None:
        self._row(result["name"], dict(zip(_COLUMNS, _cells(result), strict=True)))

    def _row(self, name: str, cells: dict[str, str]) -> None:
        padded = (cells[c].rjust(width) for c, width in _COLUMNS.items())
        write(f"| {name.ljust(self._width)} | {' | '.join(padded)} |\n")


def _cells(r: dict[str, Any]) -> Iterator[str]:
    yield f"{r['us']:.2f}"
    yield f"{r['gbs']:.0f}" if r["gbs"] >= 100 else f"{r['gbs']:.1f}"
    yield f"{r['gflops']:.0f}" if r["flops"] else ""
    yield "" if r["roof_us"] is None else f"{r['roof_us']:.2f}"
    yield "" if r["of_roof"] is None else f"{r['of_roof']:.1%}"
    yield r["bound"]
    yield r["rival"]
    yield "" if r["rival_us"] is None else f"{r['rival_us']:.2f}"
    yield "" if r["speedup"] is None else f"{r['speedup']:.2f}"
