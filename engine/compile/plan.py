"""The plan: prune -> pad rows -> fuse -> join -> place -> split -> schedule -> within -> memory,
put together.

Pure; no device is touched.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.graph import Graph, Role, Tensor, exchanged, op_spec

from .exchanges import exchange_sizes, n_ranks
from .fuse import fuse_graph
from .join import bring_together, join_products
from .memory import ALIGN, SHARED_OUTPUT_BYTES, ArenaPlan, plan_memory, round_up
from .place import Placement, PlacementRules, place
from .prune import prune
from .row_classes import mark_classes
from .row_padding import pad_rows
from .schedule import Step, backend_of, schedule
from .split import Copy, Segment, split
from .types import HOST_SPACE, BackendInfo
from .within import make_within


@dataclass
class PlanOptions:
    """What, besides the graph, a plan depends on."""

    placement: PlacementRules
    fuse: bool = True


@dataclass
class SpaceBytes:
    """Exact bytes one memory space will need for a plan.

    results: outputs that have memory of their own, besides the arena's. copies: of values that live
    in another space. exchange: what devices exchange over, and such copies where it is there: see
    `runtime.workspace`. scratch: temporary memory that a device's kernels share.
    """

    weights: int = 0
    states: int = 0
    inputs: int = 0
    results: int = 0
    copies: int = 0
    exchange: int = 0
    arena: int = 0
    scratch: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.states + self.working

    @property
    def working(self) -> int:
        """All but weights and states."""
        own = self.inputs + self.results + self.copies
        return own + self.exchange + self.arena + self.scratch

    @classmethod
    def together(cls, plans: Sequence[SpaceBytes]) -> SpaceBytes:
        """Of plans over the same weights and states, which share the arena, the scratch and what
        devices exchange over."""
        shared = {f: max(getattr(p, f) for p in plans)
                  for f in ("weights", "states", "exchange", "arena", "scratch")}  # fmt: skip
        own = {f: sum(getattr(p, f) for p in plans) for f in ("inputs", "results", "copies")}
        return cls(**shared, **own)


@dataclass
class Plan:
    """A compiled graph: what runs where, in which order, at which addresses.

    steps: the whole run. brought: leaves that another space has too, as they are when it begins.
    segments: its nodes as they follow each other on one backend, each with what it must have.
    made_for: what whoever compiled it knows it by.
    """

    graph: Graph
    placement: Placement
    segments: list[Segment]
    steps: list[Step]
    brought: list[Copy]
    arenas: dict[str, ArenaPlan]  # by memory space
    spaces: dict[str, str]  # backend name -> memory space
    fused: Counter[str] = field(default_factory=Counter)
    scratch: dict[str, int] = field(default_factory=dict)  # by memory space
    units: dict[str, int] = field(default_factory=dict)  # bytes that allocations are multiples of
    channels: dict[str, int] = field(default_factory=dict)  # for exchanges, by memory space
    made_for: Any = None

    @property
    def nodes(self) -> Sequence[Tensor]:
        return self.graph.nodes

    def space_of(self, owner: Tensor) -> str:
        """Memory space an owner lives in."""
        return self.spaces[self.placement.of[owner]]

    def program(self, backend: str) -> list[Step]:
        """The steps of one backend, in order."""
        return [s for s in self.steps if backend_of(s, self.placement) == backend]

    def leaves(self, role: Role) -> list[Tensor]:
        """Leaves of one role, in the order they were declared."""
        return [t for t in self.graph.leaves.values() if t.role is role]

    def bytes_by_space(self) -> dict[str, SpaceBytes]:
        """Weights count with their strides; a backend that repacks says so separately."""
        out = {s: SpaceBytes() for s in dict.fromkeys(self.spaces.values())}
        given = Counter[str]()  # bytes of inputs that another space has too
        unit = {space: self.units.get(space, ALIGN) for space in out}
        for t in self.leaves(Role.WEIGHT):
            space = self.space_of(t)
            out[space].weights += round_up(t.stored_bytes, unit[space])
        for t in self.leaves(Role.STATE):
            space = self.space_of(t)
            out[space].states += round_up(t.nbytes, unit[space])
        for t in self.leaves(Role.INPUT):
            out[self.space_of(t)].inputs += round_up(t.nbytes)
        for t in {t.owner for t in self.graph.outputs if t.owner.role is Role.NODE}:
            if t.nbytes <= SHARED_OUTPUT_BYTES:
                out[self.space_of(t)].results += round_up(t.nbytes)
        for t, space in {(c.owner, c.target) for s in self.segments for c in s.copies}:
            if t.role is Role.INPUT:
                given[space] += round_up(t.nbytes)
            elif not self.is_shared(t, space):
                out[space].copies += round_up(t.stored_bytes)
        for space, b in out.items():
            b.arena, b.scratch = self.arenas[space].nbytes, self.scratch.get(space, 0)
            b.exchange = self.shared_bytes(space)
            for part in ("inputs", "results", "copies", "exchange", "arena", "scratch"):
                setattr(b, part, round_up(getattr(b, part), unit[space]))  # one allocation each
            b.copies += round_up(given[space], unit[space])
            b.exchange += round_up(self.channels.get(space, 0), unit[space])
        return out

    @cached_property
    def feeds_itself(self) -> bool:
        """Whether it samples a token for each of its own, so that it can run again and again
        without the host."""
        inputs, sampled = self.graph.leaves, self.graph.outputs[-1:]
        return "sampler.rng" in inputs and sampled[0].shape == inputs["tokens"].shape

    def is_shared(self, owner: Tensor, space: str) -> bool:
        """Whether the copy of a value in another space lies in memory that plans have in common.
        Where devices exchange something, all of them end a run before one begins the next; except
        for steps without the host, which the next run may find on their way."""
        return owner.role is Role.NODE and space in self.channels and not self.feeds_itself

    def shared_bytes(self, space: str) -> int:
        """Of all such copies there."""
        met = {c.owner for s in self.segments for c in s.copies if c.target == space}
        return sum(round_up(t.stored_bytes) for t in met if self.is_shared(t, space))

    def flops(self) -> int:
        """Operations of one run."""
        return sum(op_spec(n.op).flops(n) for n in self.nodes if n.op)


def compile_graph(graph: Graph, options: PlanOptions) -> Plan:
    """Compile `graph`, which is consumed. Raises PlacementError when a node can run nowhere."""
    order = options.placement.order
    graph.nodes = prune(graph.nodes, graph.outputs)
    pad_rows(graph, options.placement)
    fused: Counter[str] = Counter()
    if options.fuse:
        before = Counter(n.op for n in graph.nodes)
        supported = _supported_where_used(graph, options.placement)
        graph = bring_together(join_products(fuse_graph(graph, supported), supported))
        after = Counter(n.op for n in graph.nodes)
        fused = Counter({op: k for op, k in (after - before).items() if op})
    mark_classes(graph)
    placement = place(graph.nodes, graph.leaves, options.placement)
    spaces = {b.name: b.space for b in order}
    segments = split(graph.nodes, placement, spaces)
    steps, brought = schedule(segments)
    since = make_within(graph, placement, order, segments, steps)
    arenas: dict[str, ArenaPlan] = {}
    for space in dict.fromkeys(spaces.values()):
        arenas[space] = _plan_space(graph, placement, segments, spaces, space, since)
    scratch = {}
    for b in order:
        if b.memory is not None:
            mine = [n for n in graph.nodes if placement.of[n] == b.name]
            scratch[b.space] = b.memory.scratch_bytes(mine)
    units = {b.space: b.memory.unit if b.memory is not None else ALIGN for b in order}
    return Plan(
        graph, placement, segments, steps, brought, arenas, spaces, fused, scratch, units,
        _channels(graph.nodes, placement, order),
    )  # fmt: skip


def _channels(
    nodes: Sequence[Tensor], placement: Placement, order: Sequence[BackendInfo]
) -> dict[str, int]:
    """Bytes of each space for what its nodes exchange."""
    exchanges = [n for n in nodes if exchanged(n)]
    found: dict[str, int] = {}
    for b in order if exchanges else ():
        mine = [n for n in exchanges if placement.of[n] == b.name]
        if mine and b.links is not None and b.links.channel_bytes is not None:
            found[b.space] = b.links.channel_bytes(n_ranks(mine[0]), *exchange_sizes(mine))
    return found


def _supported_where_used(graph: Graph, rules: PlacementRules) -> Callable[[Tensor], bool]:
    """Whether every backend that the unfused graph runs on has a kernel for a node. For what the
    host computes with weights of its own, the host's kernel is enough."""
    placed = place(graph.nodes, graph.leaves, rules)
    names = {placed.of[n] for n in graph.nodes}
    used = [b for b in rules.order if b.name in names]
    host = next((b for b in used if b.space == HOST_SPACE), None)
    on_host = {n.name for n in graph.nodes if host is not None and placed.of[n] == host.name}

    def supported(node: Tensor) -> bool:
        weights = [s.owner for s in node.live_srcs() if s.owner.role is Role.WEIGHT]
        mine = host is not None and all(placed.of[w] == host.name for w in weights)
        if host is not None and mine and weights and node.name in on_host:
            return host.supports(node)
        return all(b.supports(node) for b in used)

    return supported


def _plan_space(
    graph: Graph,
    placement: Placement,
    segments: Sequence[Segment],
    spaces: dict[str, str],
    space: str,
    written: Mapping[Tensor, Tensor],
) -> ArenaPlan:
    """Memory of one space: values made there; values copied in are placed by the runtime. written:
    values that other devices write parts of, and from which node of theirs on.

    What crosses to another space is copied when a segment there starts, and must last until then.
    Of the host's values that is not enough: in a linked run a device may come for them while the
    host is further on, so that they last to the end.
    """
    at = {n: i for i, n in enumerate(graph.nodes)}
    here = [n for n in graph.nodes if spaces[placement.of[n]] == space]
    position = [at[n] for n in here]
    until: dict[Tensor, int] = {}
    for s in segments:
        for c in s.copies:
            if c.source == space and c.owner.role is Role.NODE:
                last = bisect_left(position, at[s.nodes[0]])  # made here before it starts
                until[c.owner] = len(here) if space == HOST_SPACE else last
    ours = [t for t in graph.outputs if spaces[placement.of[t.owner]] == space]
    since = {t: bisect_left(position, at[n]) for t, n in written.items()
             if spaces[placement.of[t]] == space}  # fmt: skip
    return plan_memory(here, ours, until, since)
