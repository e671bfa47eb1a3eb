"""Programs that a schedule is cut into, to run at the same time, and where they meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from gguflow.engine.backends.base import Backend, Links
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.compile import (
    Meeting,
    Plan,
    Step,
    UnlinkableError,
    check_side_by_side,
    reductions,
)
from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import Tensor

LEAST_MEETINGS = 3  # of the host with a device; fewer are cheaper than a device that waits busily


@dataclass(frozen=True)
class Sides:
    """A schedule cut into programs.

    host: whose program runs on the calling thread, None where all are devices'. devices: the
    others. steps: of every one of them. meetings: between two. reductions: nodes that exchange
    their operands, those of each exchange by rank. apart: pairs of devices that do not reach each
    other's memory, so that what crosses goes through the host's.
    """

    host: str | None
    devices: tuple[str, ...]
    steps: Mapping[str, list[Step]]
    meetings: list[Meeting]
    reductions: list[list[Tensor]]
    apart: frozenset[frozenset[str]]

    @property
    def names(self) -> tuple[str, ...]:
        """All programs' backends, the host last."""
        return self.devices if self.host is None else (*self.devices, self.host)

    @property
    def sent(self) -> list[Tensor]:
        """What the host makes for devices: it belongs in pinned memory."""
        return [o for m in self.meetings if m.source == self.host for o in m.owners]

    def is_direct(self, m: Meeting) -> bool:
        """Whether a device writes into another's memory."""
        pair = frozenset((m.source, m.target))
        return self.host not in pair and pair not in self.apart


def cut(plan: Plan, backends: Mapping[str, Backend]) -> Sides:
    """The sides of a plan. Raises UnlinkableError with the reason when they cannot run at the same
    time or it is not worth it."""
    meetings = check_side_by_side(plan.steps, plan.placement, plan.spaces)
    exchanges = reductions(plan.steps, plan.placement)
    names = sorted({s.backend for s in plan.segments})
    links = {n: backends[n].links for n in names}
    devices = tuple(n for n in names if _is_device(links[n]))
    hosts = [n for n in names if links[n] is not None and n not in devices]
    if len(devices) + len(hosts) < len(names) or not devices or len(hosts) > 1:
        raise UnlinkableError(f"{' and '.join(names)} cannot wait for each other")
    for a, b in combinations(devices, 2):
        cards = {links[n].card for n in (a, b)}  # type: ignore[union-attr]
        if cards != {""} and len(cards) == 1 and not (backends[a].holds and backends[b].holds):
            # Of two processes one would wait on the card for what the other cannot begin there.
            raise UnlinkableError(f"{a} and {b} are one card")
    if hosts and not all(backends[n].holds for n in devices):
        raise UnlinkableError(f"{hosts[0]} computes between stages")
    if hosts and len(devices) == 1 and not exchanges and len(meetings) < LEAST_MEETINGS:
        raise UnlinkableError(f"only {len(meetings)} meetings")
    for group in exchanges:
        for node in group:
            of = links[plan.placement.of[node]]
            if of is None or of.channel_bytes is None:
                name = plan.placement.of[node]
                raise UnlinkableError(f"{name} has no all_reduce, which {node.name} is")
    sides = Sides(
        hosts[0] if hosts else None, devices, {n: plan.program(n) for n in names}, meetings,
        exchanges, _apart(devices, meetings, exchanges, plan, backends),
    )  # fmt: skip
    for m in meetings:
        if m.written and not sides.is_direct(m):
            raise UnlinkableError(f"{m.source} does not reach {m.target}, where it would write")
    return sides


def pinned(device: Backend, nbytes: int) -> HostBuffer:
    """Host memory that the devices of a schedule reach."""
    assert device.links is not None and device.links.alloc_pinned is not None
    return device.links.alloc_pinned(nbytes)


def _is_device(links: Links | None) -> bool:
    return links is not None and links.alloc_pinned is not None


def _apart(
    devices: Sequence[str],
    meetings: Sequence[Meeting],
    exchanges: Sequence[Sequence[Tensor]],
    plan: Plan,
    backends: Mapping[str, Backend],
) -> frozenset[frozenset[str]]:
    met = {frozenset((m.source, m.target)) for m in meetings}
    for group in exchanges:
        of = sorted({plan.placement.of[n] for n in group})
        met |= {frozenset(pair) for pair in combinations(of, 2)}
    return frozenset(p for p in met if p <= set(devices) and not _reach(p, backends))


def _reach(pair: frozenset[str], backends: Mapping[str, Backend]) -> bool:
    a, b = (backends[n] for n in sorted(pair))
    assert a.links is not None and b.links is not None
    return a.links.reaches(b) and b.links.reaches(a)
