"""Linking: the segments of a plan over two memory spaces become two programs that run side by side.

Each side runs its own nodes in the plan's order. A value that crosses is announced right after the
node that makes it (`Signal`) and awaited right before the first node over there that reads it
(`Wait`): the two are a `Meeting`, one flag. Every signal stands before its wait in the plan's
order, so whichever unfinished step comes first in that order can always go on: the two programs
cannot wait for each other in a circle, however many meetings there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gguflow.engine.graph import Role, Tensor, op_spec, written_owners

from .place import Placement
from .split import Segment


class UnlinkableError(ValueError):
    """The plan's segments have to run one after the other: one line with the reason."""


@dataclass(eq=False)
class Meeting:
    """One flag: `source` makes `owners`, `target` waits for them.

    source, target: backend names. after: the node of the source that the signal follows. before:
    the node of the target that the wait precedes. flops: the source's work since its last signal,
    for which a wait must have patience.
    """

    index: int
    source: str
    target: str
    after: Tensor
    before: Tensor
    owners: list[Tensor] = field(default_factory=list)
    flops: int = 0


@dataclass(frozen=True)
class Signal:
    """The step of the source that hands a meeting's values over."""

    meeting: Meeting


@dataclass(frozen=True)
class Wait:
    """The step of the target that takes a meeting's values."""

    meeting: Meeting


Step = Tensor | Signal | Wait


@dataclass
class Link:
    """Two programs, by backend name. Inputs and weights are copied before either starts."""

    programs: dict[str, list[Step]]
    meetings: list[Meeting]


def link(segments: Sequence[Segment], placement: Placement, spaces: Mapping[str, str]) -> Link:
    """Programs for the two backends of `segments`. Raises UnlinkableError with the reason."""
    backends = sorted({s.backend for s in segments})
    if len(backends) != 2:
        raise UnlinkableError(f"the plan runs on {', '.join(backends)}; linking takes two backends")
    if len({spaces[b] for b in backends}) != 2:
        raise UnlinkableError(f"{' and '.join(backends)} share one memory space")
    home = {spaces[b]: b for b in backends}
    crossing = {
        (c.owner, home[c.target])
        for s in segments
        for c in s.copies
        if c.owner.role not in (Role.WEIGHT, Role.INPUT)
    }
    nodes = [(n, s.backend) for s in segments for n in s.nodes]
    _check_written_once(nodes, {owner for owner, _ in crossing})
    meetings = _meetings(nodes, crossing, placement)
    return Link(_programs(nodes, meetings), meetings)


def _check_written_once(nodes: Sequence[tuple[Tensor, str]], crossing: set[Tensor]) -> None:
    """What crosses must be complete once it is made; a state, say, changes with every run."""
    for owner in crossing:
        if owner.role is not Role.NODE:
            raise UnlinkableError(f"{owner.name} is a {owner.role.value} read from another device")
    for n, _ in nodes:
        for target in written_owners(n):
            if target in crossing:
                raise UnlinkableError(f"{n.name} writes into {target.name}, which crosses devices")


def _meetings(
    nodes: Sequence[tuple[Tensor, str]], crossing: set[tuple[Tensor, str]], placement: Placement
) -> list[Meeting]:
    """As few as do not make a signal later or a wait earlier than some value needs.

    A value rides with one awaited no later than itself whose signal comes no earlier: it is there
    in time and holds nobody up.
    """
    at = {n: i for i, (n, _) in enumerate(nodes)}
    first_use: dict[tuple[Tensor, str], Tensor] = {}
    for n, backend in nodes:
        for s in n.live_srcs():
            key = (s.owner, backend)
            if key in crossing:
                first_use.setdefault(key, n)
    meetings: list[Meeting] = []
    values = sorted(first_use.items(), key=lambda v: (at[v[1]], -at[v[0][0]]))
    for (owner, target), before in values:
        same_way = [m for m in meetings if m.target == target and at[m.after] >= at[owner]]
        if not same_way:
            source = placement.of[owner]
            same_way = [Meeting(len(meetings), source, target, after=owner, before=before)]
            meetings += same_way
        same_way[-1].owners.append(owner)
    return meetings


def _programs(
    nodes: Sequence[tuple[Tensor, str]], meetings: Sequence[Meeting]
) -> dict[str, list[Step]]:
    signals = {m.after: m for m in meetings}
    waits = {m.before: m for m in meetings}
    programs: dict[str, list[Step]] = {backend: [] for _, backend in nodes}
    work = dict.fromkeys(programs, 0)
    for n, backend in nodes:
        program = programs[backend]
        if n in waits:
            program.append(Wait(waits[n]))
        program.append(n)
        work[backend] += op_spec(n.op).flops(n) if n.op else 0
        if n in signals:
            signals[n].flops, work[backend] = work[backend], 0
            program.append(Signal(signals[n]))
    return programs
