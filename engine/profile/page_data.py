"""What the HTML page shows, as plain JSON data: totals, roofline dots, steps and a few timelines.

Everything is added up here, so that the page stays small however many steps were profiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .group import GROUPINGS, Total, add_up, largest, module_of, regroup, totals_by_name
from .record import HOST, PHASES, OpRow, Recording, StepRow

MAX_GROUPS = 400  # rows of a table; what is left is one more row
MAX_BARS = 240  # bars of the step chart
MAX_SPANS = 12_000  # ops in all timelines together, about a megabyte


def page_data(recording: Recording) -> dict[str, Any]:
    """The data of the page: header facts, and for each phase that ran its totals and timelines."""
    header = recording.header
    totals = totals_by_name(recording)
    steps = recording.steps
    names = dict.fromkeys([*PHASES, *(s.phase for s in steps)])
    by_phase = {p: [s for s in steps if s.phase == p] for p in names}
    picked = _pick(by_phase)
    ops: dict[int, list[OpRow]] = {s.step: [] for _, s in picked}
    for row in recording.rows(ops.keys()):
        ops[row.step].append(row)
    picked = _within_budget(picked, {step: len(rows) for step, rows in ops.items()})
    return {
        "header": {
            "model": header.model,
            "machine": header.machine,
            "threads": header.threads,
            "created": header.created,
            "facts": [[str(k), str(v)] for k, v in header.facts.items()],
            "peaks": [
                {
                    "backend": b,
                    "gbs": p.read_gbs,
                    "f32": p.f32_gflops,
                    "int8": p.int8_gops,
                    "f16": p.f16_gflops,
                    "bf16": p.bf16_gflops,
                }
                for b, p in header.peaks.items()
            ],
        },
        "phases": [
            _phase(phase, of_phase, totals, [(t, s, ops[s.step]) for t, s in picked])
            for phase, of_phase in by_phase.items()
            if of_phase
        ],
    }


def _phase(
    phase: str,
    steps: list[StepRow],
    totals: list[Total],
    picked: list[tuple[str, StepRow, list[OpRow]]],
) -> dict[str, Any]:
    totals = [t for t in totals if t.phase == phase]
    whole = add_up(totals, "total")
    return {
        "name": phase,
        "steps": len(steps),
        "tokens": sum(s.n_tokens for s in steps),
        "wall_us": _us(sum(s.wall_us for s in steps)),
        "host_us": _us(sum(s.host_us for s in steps)),
        "total": _total(whole),
        "groups": {
            name: [_total(g) for g in largest(regroup(totals, key), MAX_GROUPS)]
            for name, key in GROUPINGS.items()
        },
        "dots": _dots(totals),
        "bars": _bars(steps),
        "timelines": [
            {
                "title": title,
                "step": s.step,
                "tokens": s.n_tokens,
                "past": s.n_past,
                "wall_us": _us(s.wall_us),
                "ops": [_span(r, s) for r in rows],
            }
            for title, s, rows in picked
            if s.phase == phase
        ],
    }


def _us(value: float) -> float:
    return round(value, 3)


def _share(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _total(t: Total) -> list[Any]:
    return [t.key, t.calls, _us(t.us), t.bytes, t.flops, _share(t.share)]


def _span(r: OpRow, s: StepRow) -> list[Any]:
    start = _us(r.start_us - s.start_us)
    return [r.name, r.op, r.backend, start, _us(r.us), r.bytes, r.flops, _share(r.share)]


def op_class(op: str) -> str:
    """What colours an op: matrix products, attention, the host's time, and the rest."""
    if op.startswith("mul_mat"):
        return "matmul"
    return op if op in ("attention", HOST) else "other"


def _dots(totals: Iterable[Total]) -> list[dict[str, Any]]:
    """Roofline dots: a module with its types each, where it both moves and computes something."""
    work = [t for t in totals if t.bytes and t.flops and t.us]
    groups = regroup(work, lambda t: "\0".join((module_of(t.key), t.op, t.backend, *t.types)))
    return [
        {
            "name": module_of(g.key.split("\0")[0]),
            "op": g.op,
            "class": op_class(g.op),
            "backend": g.backend,
            "types": list(g.types),
            "shapes": [list(s) for s in g.shapes],
            "total": _total(g)[1:],
        }
        for g in groups[:MAX_GROUPS]
    ]


def _bars(steps: list[StepRow]) -> list[list[Any]]:
    """[first step, last step, mean, least, most microseconds] of equal runs of steps."""
    per_bar = -(-len(steps) // MAX_BARS)
    bars: list[list[Any]] = []
    for i in range(0, len(steps), per_bar):
        run = steps[i : i + per_bar]
        us = [s.wall_us for s in run]
        bars.append([run[0].step, run[-1].step, _us(sum(us) / len(us)), _us(min(us)), _us(max(us))])
    return bars


def _pick(by_phase: dict[str, list[StepRow]]) -> list[tuple[str, StepRow]]:
    """The steps worth a timeline: of each phase the median, the slowest, the first, the last."""
    picked: list[tuple[str, StepRow]] = []
    for steps in by_phase.values():
        if not steps:
            continue
        by_time = sorted(steps, key=lambda s: s.wall_us)
        titles = {"median": by_time[(len(by_time) - 1) // 2], "slowest": by_time[-1]}
        titles |= {"first": steps[0], "last": steps[-1]}
        seen: set[int] = set()
        for title, step in titles.items():
            if step.step not in seen:
                seen.add(step.step)
                picked.append((title, step))
    return picked


def _within_budget(
    picked: list[tuple[str, StepRow]], sizes: dict[int, int]
) -> list[tuple[str, StepRow]]:
    """Every phase's median step, and the others while all together hold at most MAX_SPANS ops."""
    left = MAX_SPANS - sum(sizes[s.step] for title, s in picked if title == "median")
    kept = []
    for title, s in picked:
        if title != "median":
            if sizes[s.step] > left:
                continue
            left -= sizes[s.step]
        kept.append((title, s))
    return kept
