"""Totals of a profile: by graph name first, then by op, by module or by layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from gguflow.engine.dataclass import dataclass

from .rates import Rates
from .record import OpRow, Recording

_LAYER = re.compile(r"^(?P<layer>(?P<before>.*?)blk\.\d+)\.(?P<rest>.+)$")


def module_of(name: str) -> str:
    """The place in the model without the layer number: `blk.3.attn.q` -> `attn.q`."""
    m = _LAYER.match(name)
    return m["before"] + m["rest"] if m else name


def layer_of(name: str) -> str:
    """The layer: `blk.3.attn.q` -> `blk.3`. What lies outside the layers is its own."""
    m = _LAYER.match(name)
    return m["layer"] if m else name


@dataclass(slots=True)
class Total(Rates):
    """Rows of one phase added up.

    ideal_us: what the same work takes at the measured peaks, None where no peak is known; only
    the rows that have a peak count towards it and towards peak_us.
    """

    key: str
    phase: str
    op: str = ""
    backend: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    calls: int = 0
    us: float = 0.0
    bytes: int = 0
    flops: int = 0
    ideal_us: float = 0.0
    peak_us: float = 0.0

    @property
    def us_per_call(self) -> float:
        return self.us / self.calls if self.calls else 0.0

    @property
    def share(self) -> float | None:
        """Time at the peaks over time taken; None if no peak is known."""
        return self.ideal_us / self.peak_us if self.peak_us else None

    def add(self, other: Total | OpRow) -> None:
        """Add a row's or another total's work."""
        if isinstance(other, OpRow):
            self.calls += 1
            if other.share is not None:
                self.ideal_us += other.share * other.us
                self.peak_us += other.us
        else:
            self.calls += other.calls
            self.ideal_us += other.ideal_us
            self.peak_us += other.peak_us
        self.us += other.us
        self.bytes += other.bytes
        self.flops += other.flops


def totals_by_name(recording: Recording) -> list[Total]:
    """One total a graph name, phase, op and backend, in the order first run. Shapes and types are
    those of the first row (the last chunk of a prompt may be shorter)."""
    totals: dict[tuple[str, str, str, str], Total] = {}
    for row in recording.rows():
        key = (row.phase, row.name, row.op, row.backend)
        total = totals.get(key)
        if total is None:
            total = totals[key] = Total(
                key=row.name,
                phase=row.phase,
                op=row.op,
                backend=row.backend,
                shapes=tuple(tuple(s) for s in row.shapes),
                types=tuple(row.types),
            )
        total.add(row)
    return list(totals.values())


GROUPINGS: dict[str, Callable[[Total], str]] = {
    "op": lambda t: t.op,
    "module": lambda t: module_of(t.key),
    "layer": lambda t: layer_of(t.key),
}


def regroup(totals: Iterable[Total], key: Callable[[Total], str]) -> list[Total]:
    """Totals with equal phase and `key` added up, the longest first."""
    groups: dict[tuple[str, str], Total] = {}
    for t in totals:
        k = (t.phase, key(t))
        if k not in groups:
            groups[k] = Total(k[1], t.phase, t.op, t.backend, t.shapes, t.types)
        groups[k].add(t)
    return sorted(groups.values(), key=lambda g: -g.us)


def largest(groups: list[Total], limit: int | None) -> list[Total]:
    """The first `limit` groups (all of one phase) and the rest as one, so that nothing is lost."""
    if limit is None or len(groups) <= limit:
        return groups
    rest = groups[limit:]
    return [*groups[:limit], add_up(rest, f"{len(rest)} more")]


def add_up(groups: list[Total], key: str) -> Total:
    """One total of `groups`, which must share a phase."""
    total = Total(key, groups[0].phase if groups else "")
    for g in groups:
        total.add(g)
    return total
