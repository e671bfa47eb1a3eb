"""Sparse layers in a profile: what was active, where its time went, how much of it side by side."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gguflow.engine.dataclass import dataclass, field

from .record import PHASES, ActivityRow, OpRow, Recording

# `blk.3.ffn.hot`, and its parts where they are not fused: `blk.3.ffn.hot_gate`.
_OP = re.compile(r"^(?P<layer>blk\.\d+)\.ffn\.(?P<half>hot|cold|sparse|predict)(?:_\w+)?$")
# With its norm and residual a layer of a device has the residual's name.
_WHOLE = re.compile(r"^(?P<layer>blk\.\d+)\.ffn\.(?P<half>residual)$")

Span = tuple[float, float]


@dataclass(slots=True)
class LayerTime:
    """Milliseconds of a phase's steps in a sparse layer.

    predict: the predictor. hot: the device's neurons; cold: the host's, or all of them where there
    is no split; overlap: while both were at work.
    """

    layer: str
    predict: float = 0.0
    hot: float = 0.0
    cold: float = 0.0
    overlap: float = 0.0

    def add(self, other: LayerTime) -> None:
        self.predict += other.predict
        self.hot += other.hot
        self.cold += other.cold
        self.overlap += other.overlap


@dataclass(slots=True)
class _Halves:
    """One layer in one step."""

    predict: list[Span] = field(default_factory=list)
    hot: list[Span] = field(default_factory=list)
    cold: list[Span] = field(default_factory=list)

    def time(self, layer: str) -> LayerTime:
        both = sum(max(0.0, min(h[1], c[1]) - max(h[0], c[0])) for h in self.hot for c in self.cold)
        us = _length(self.predict), _length(self.hot), _length(self.cold), both
        predict, hot, cold, overlap = (x / 1e3 for x in us)
        return LayerTime(layer, predict, hot, cold, overlap)


def _match(row: OpRow) -> re.Match[str] | None:
    """`layer` and `half` of what belongs to a sparse layer."""
    return (_WHOLE if row.op == "norm_sparse_ffn" else _OP).match(row.name)


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


def layer_times(recording: Recording, phase: str) -> list[LayerTime]:
    """Of every sparse layer, in the order they run."""
    totals: dict[str, LayerTime] = {}
    step: dict[str, _Halves] = {}
    number = -1

    def finish() -> None:
        for layer, halves in step.items():
            totals.setdefault(layer, LayerTime(layer)).add(halves.time(layer))
        step.clear()

    for row in recording.rows():
        if row.step != number:
            finish()
            number = row.step
        if row.phase == phase and (m := _match(row)):
            half = {"sparse": "cold", "residual": "hot"}.get(m["half"], m["half"])
            getattr(step.setdefault(m["layer"], _Halves()), half).append(_span(row))
    finish()
    return [t for t in totals.values() if t.hot or t.cold]


def _span(row: OpRow) -> Span:
    return row.start_us, row.start_us + row.us


def is_sparse(recording: Recording) -> bool:
    """Whether there is anything to show."""
    return bool(recording.activity) or any(_match(r) for r in recording.rows({0}))


def print_sparse_table(recording: Recording, console: Console, phase: str | None = None) -> None:
    """One table a phase: by layer the share of neurons that fire and that are computed, the recall,
    and the time of both halves."""
    activity = {a.layer: a for a in recording.activity}
    shown = 0
    for p in PHASES:
        times = layer_times(recording, p)
        if times and phase in (None, p):
            console.print(_table(times, activity, p))
            shown += 1
    if not shown:
        console.print("No sparse layers.")


def _table(times: list[LayerTime], activity: dict[str, ActivityRow], phase: str) -> Table:
    table = Table(title=f"{phase}: sparse layers", title_justify="left", title_style="bold")
    table.add_column("layer", overflow="fold")
    for column in ("active %", "computed %", "recall %", "predict ms", "hot ms", "cold ms",
                   "overlap ms"):  # fmt: skip
        table.add_column(column, justify="right", no_wrap=True)
    for t in times:
        table.add_row(Text(t.layer), *_shares(activity.get(t.layer)), *_times(t))
    whole = LayerTime("total")
    for t in times:
        whole.add(t)
    table.add_section()
    table.add_row("total", *_shares(_mean(list(activity.values()))), *_times(whole), style="bold")
    return table


def _mean(rows: list[ActivityRow]) -> ActivityRow | None:
    """All layers as one; a recall weighs by what fires."""
    if not rows:
        return None
    n = len(rows)
    fired = sum(r.active for r in rows)
    hit = sum(r.active * r.recall for r in rows if r.recall is not None)
    recall = hit / fired if fired else None
    computed = sum(r.computed for r in rows) / n
    return ActivityRow("total", rows[0].n_tokens, fired / n, computed, recall)


def _shares(a: ActivityRow | None) -> list[str]:
    if a is None:
        return ["—"] * 3
    recall = "—" if a.recall is None else f"{100 * a.recall:.1f}"
    return [f"{100 * a.active:.1f}", f"{100 * a.computed:.1f}", recall]


def _times(t: LayerTime) -> list[str]:
    return [f"{x:,.2f}" for x in (t.predict, t.hot, t.cold, t.overlap)]
