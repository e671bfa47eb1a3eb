"""The schedule: a plan as one list of steps, nodes and what crosses between memory spaces.

A value that crosses is handed over right after the node that makes it (`Send`) and taken right
before the first node over there that reads it (`Recv`): the two are a `Meeting`. Every send stands
before its receive in the list, so whichever unfinished step comes first can always go on: programs
that run side by side, one a device, cannot wait for each other in a circle, however many meetings
there are. Run in turn, the same list is cut where the device changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.graph import (
    Role,
    Tensor,
    exchanged,
    exchanged_by_rank,
    op_spec,
    written_owners,
)

from .place import Placement
from .split import Copy, Segment


class UnlinkableError(ValueError):
    """The parts of a schedule have to run one after the other: one line with the reason."""


@dataclass(eq=False)
class Meeting:
    """Values that cross together: `source` makes `owners`, `target` waits for them.

    source, target: backend names. after: the node of the source that the send follows. before: the
    node of the target that the receive precedes. flops: the source's work since its last send, for
    which a receiver must have patience. written: values that nothing has to be brought of, for the
    source writes them in the target's memory, see `within`.
    """

    index: int
    source: str
    target: str
    after: Tensor
    before: Tensor
    owners: list[Tensor] = field(default_factory=list)
    flops: int = 0
    written: list[Tensor] = field(default_factory=list)

    @property
    def values(self) -> list[Tensor]:
        """All of them."""
        return [*self.owners, *self.written]


@dataclass(frozen=True)
class Send:
    """The step of the source that hands a meeting's values over."""

    meeting: Meeting


@dataclass(frozen=True)
class Recv:
    """The step of the target that takes a meeting's values."""

    meeting: Meeting


Step = Tensor | Send | Recv


def schedule(
    segments: Sequence[Segment],
) -> tuple[list[Step], list[Copy]]:
    """Every node and what crosses, in the plan's order; and the leaves that nothing has written
    before they are read elsewhere, which have no meeting but are brought before a run."""
    nodes = [(n, s.backend) for s in segments for n in s.nodes]
    meetings, brought = _meetings(segments, nodes)
    before: dict[Tensor, list[Meeting]] = {}
    after: dict[Tensor, list[Meeting]] = {}
    for m in meetings:
        before.setdefault(m.before, []).append(m)
        after.setdefault(m.after, []).append(m)
    steps: list[Step] = []
    work = dict.fromkeys((b for _, b in nodes), 0)
    for n, backend in nodes:
        steps += (Recv(m) for m in before.get(n, ()))
        steps.append(n)
        work[backend] += op_spec(n.op).flops(n) if n.op else 0
        for m in after.get(n, ()):
            m.flops, work[backend] = work[backend], 0
            steps.append(Send(m))
    return steps, brought


def backend_of(step: Step, placement: Placement) -> str:
    """The backend whose program has a step."""
    if isinstance(step, Tensor):
        return placement.of[step]
    return step.meeting.source if isinstance(step, Send) else step.meeting.target


def _meetings(
    segments: Sequence[Segment], nodes: Sequence[tuple[Tensor, str]]
) -> tuple[list[Meeting], list[Copy]]:
    """As few as do not make a send later or a receive earlier than some value needs.

    A value rides with one from the same source that is awaited no later than itself and sent no
    earlier: it is there in time and holds nobody up.
    """
    at = {n: i for i, (n, _) in enumerate(nodes)}
    writers: dict[Tensor, list[int]] = {}
    for i, (n, _) in enumerate(nodes):
        for owner in dict.fromkeys((n.owner, *written_owners(n))):
            writers.setdefault(owner, []).append(i)
    brought: list[Copy] = []
    crossing: list[tuple[int, int, Tensor, str]] = []  # first reader, last writer, value, target
    for s in segments:
        for c in s.copies:
            reader = next(at[n] for n in s.nodes if any(x.owner is c.owner for x in n.live_srcs()))
            made = [i for i in writers.get(c.owner, ()) if i < reader]
            if made:
                crossing.append((reader, made[-1], c.owner, s.backend))
            else:
                brought.append(c)
    meetings: list[Meeting] = []
    latest: dict[tuple[str, str], Meeting] = {}  # of each way, which is sent last
    for reader, writer, owner, target in sorted(crossing, key=lambda v: (v[0], -v[1])):
        way = nodes[writer][1], target
        meeting = latest.get(way)
        if meeting is None or at[meeting.after] < writer:
            meeting = Meeting(len(meetings), *way, nodes[writer][0], nodes[reader][0])
            latest[way] = meeting
            meetings.append(meeting)
        meeting.owners.append(owner)
    return meetings, brought


def reductions(steps: Sequence[Step], placement: Placement) -> list[list[Tensor]]:
    """The nodes that exchange parts, those of each exchange in the order of who made them.

    Raises UnlinkableError unless each backend that made a part has one of them, with no other
    node in between: what waits there could wait for another of them.
    """
    nodes = [s for s in steps if isinstance(s, Tensor)]
    groups: list[list[Tensor]] = []
    at = 0
    while at < len(nodes):
        n, at = nodes[at], at + 1
        if not exchanged(n):
            continue
        by_rank = exchanged_by_rank(n)
        makers = [placement.of[made[-1].owner] for made in by_rank]
        for maker, made in zip(makers, by_rank, strict=True):
            if any(placement.of[t.owner] != maker for t in made):
                raise UnlinkableError(f"{n.name} exchanges what {maker} has not made")
        members = {placement.of[m]: m for m in nodes[at - 1 : at - 1 + len(makers)]
                   if exchanged(m) == exchanged(n)}  # fmt: skip
        if set(members) != set(makers) or len(members) != len(makers):
            raise UnlinkableError(
                f"{n.name} is made on {', '.join(makers)} and wanted on {', '.join(members)}"
            )
        groups.append([members[m] for m in makers])
        at += len(makers) - 1
    return groups


def check_side_by_side(
    steps: Sequence[Step], placement: Placement, spaces: Mapping[str, str]
) -> list[Meeting]:
    """The meetings of a schedule whose backends can run at the same time, each its own steps.

    Raises UnlinkableError with the reason when they cannot.
    """
    nodes = [s for s in steps if isinstance(s, Tensor)]
    backends = sorted({placement.of[n] for n in nodes})
    for space in {spaces[b] for b in backends}:
        alike = [b for b in backends if spaces[b] == space]
        if len(alike) > 1:
            raise UnlinkableError(f"{' and '.join(alike)} share one memory space")
    for n in nodes:  # what crosses must be complete once it is made; a state changes with every run
        for s in n.live_srcs():
            owner = s.owner
            if owner.role is Role.STATE and spaces[placement.of[owner]] != spaces[placement.of[n]]:
                raise UnlinkableError(f"{owner.name} is a state read from another device")
    meetings = [s.meeting for s in steps if isinstance(s, Send)]
    crossing = {o for m in meetings for o in m.owners}
    for n in nodes:
        for target in written_owners(n):
            if target in crossing:
                raise UnlinkableError(f"{n.name} writes into {target.name}, which crosses devices")
    return sorted(meetings, key=lambda m: m.index)
