"""Values that are made within another: parts of what an op joins, which need not be moved.

An op such as concat moves its operands to where they stand in the result. Where some of them come
from other devices, those that can be are made there: as views of the result, which their kernels
write with its strides, the other devices' ones right into this one's memory. Of the crossing the
flag is left, and of the op what it has to move of other operands, mostly nothing.

A device may write into another's memory once nothing reads there what was before. What tells it is
an exchange in which both have a part (an all_reduce), of every run and before the value in it. To
be through with the exchange, a device must have what the other one made for it, and the other one
begins with it in the order of its stream: after all steps of the runs before, with whatever plan,
and after those of this run that come before the exchange. So the result's memory belongs to it from
that exchange on, the exchange's own operands included, and until then to anybody (`since` of
`plan_memory`). Without such an exchange values cross as others do. That both run at the same time
follows: a plan with exchanges runs in no other way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.graph import Graph, Role, Tensor, exchanged, op_spec

from .place import Placement
from .schedule import Recv, Send, Step, UnlinkableError, reductions
from .split import Segment
from .types import BackendInfo


@dataclass(frozen=True)
class _Part:
    """A value, the view that it becomes, and after which node of the result's device another device
    may write it; None for one of the same device."""

    value: Tensor
    view: Tensor
    after: Tensor | None

    def apply(self) -> None:
        """Have it become the view."""
        value, view = self.value, self.view
        value.strides, value.view_of, value.view_offset = (
            view.strides, view.view_of, view.view_offset,
        )  # fmt: skip


def make_within(
    graph: Graph,
    placement: Placement,
    order: Sequence[BackendInfo],
    segments: Sequence[Segment],
    steps: Sequence[Step],
) -> dict[Tensor, Tensor]:
    """Turn parts into views of what joins them, where one of them comes from another device; the
    graph, its segments and its steps change. Returns the results, each with the node of its device
    from which on its memory is its own."""
    search = _Search(graph, placement, order, segments, steps)
    within: set[Tensor] = set()
    since: dict[Tensor, Tensor] = {}
    for node in reversed(graph.nodes):  # what joins before what is joined
        parts = search.parts_of(node) if node not in within else []
        after = [p.after for p in parts if p.after is not None]
        if not after:
            continue
        since[node] = min(after, key=search.position)
        for p in parts:
            p.apply()
            within.add(p.value)
    if within:
        _nothing_to_bring(within, segments, steps)
    return since


class _Search:
    """What may become part of what."""

    def __init__(
        self,
        graph: Graph,
        placement: Placement,
        order: Sequence[BackendInfo],
        segments: Sequence[Segment],
        steps: Sequence[Step],
    ) -> None:
        self._placement, self._steps = placement, steps
        self._by_name: Mapping[str, BackendInfo] = {b.name: b for b in order}
        self._at = {n: i for i, n in enumerate(graph.nodes)}
        self._crossing = {c.owner for s in segments for c in s.copies}
        self._uses = Counter(s.owner for n in graph.nodes for s in n.live_srcs())
        self._uses.update(t.owner for t in graph.outputs)
        self._exchanges: list[dict[str, Tensor]] | None = None  # of each, the nodes by backend

    def position(self, node: Tensor) -> int:
        return self._at[node]

    def parts_of(self, whole: Tensor) -> list[_Part]:
        """The parts of a node that could be made within it; none unless it is only read where it
        is made."""
        if whole.op is None or whole.view_of is not None or whole in self._crossing:
            return []
        return [*self._parts(whole, whole)]

    def _parts(self, whole: Tensor, joined: Tensor) -> Iterator[_Part]:
        """joined: the result, or a part of it that joins others itself."""
        assert joined.op is not None
        spec = op_spec(joined.op)
        for i, s in enumerate(joined.srcs):
            place = spec.place_of(joined, i) if s is not None else None
            if s is None or place is None or not self._is_free(s):
                continue
            offset, strides = place
            at = joined.view_offset + offset
            view = replace(s, strides=strides, view_of=whole, view_offset=at)
            if not self._by_name[self._placement.of[s]].supports_strides(view):
                continue
            after = None
            if self._placement.of[s] != self._placement.of[whole]:
                after = self._last_exchange(s, whole)
                if after is None:
                    continue
            yield _Part(s, view, after)
            if after is None:
                yield from self._parts(whole, view)

    def _is_free(self, s: Tensor) -> bool:
        """Whether a value has memory that it does not share, and nobody else reads it."""
        own = s.role is Role.NODE and s.view_of is None and s.op is not None
        return own and self._uses[s] == 1 and not exchanged(s)

    def _last_exchange(self, part: Tensor, whole: Tensor) -> Tensor | None:
        """The node of the result's device in the last exchange before the part that both devices
        take part in; None where there is none, or they do not reach each other's memory."""
        maker, home = (self._placement.of[t] for t in (part, whole))
        if not self._reach(maker, home):
            return None
        if self._exchanges is None:
            try:
                groups = reductions(self._steps, self._placement)
            except UnlinkableError:
                groups = []
            self._exchanges = [{self._placement.of[n]: n for n in group} for group in groups]
        for by_name in reversed(self._exchanges):
            mine, theirs = by_name.get(maker), by_name.get(home)
            if mine is None or theirs is None:
                continue
            if self._at[mine] < self._at[part] and self._at[theirs] < self._at[whole]:
                return theirs
        return None

    def _reach(self, *names: str) -> bool:
        a, b = (self._by_name[n] for n in names)
        if a.links is None or b.links is None or a.space == b.space:
            return False
        return a.links.reaches(b) and b.links.reaches(a)


def _nothing_to_bring(
    within: set[Tensor], segments: Sequence[Segment], steps: Sequence[Step]
) -> None:
    """What is made within a value of another device is there: only its flag crosses."""
    for segment in segments:
        segment.copies = [c for c in segment.copies if c.owner not in within]
    for m in {s.meeting for s in steps if isinstance(s, Send | Recv)}:
        m.written = [o for o in m.owners if o in within]
        m.owners = [o for o in m.owners if o not in within]
