"""The plan: prune -> fuse -> place -> split -> memory, put together. Pure; no device is touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gguflow.engine.graph import Graph, Role, Tensor, op_spec

from .fuse import fuse_graph
from .memory import ArenaPlan, plan_memory, round_up
from .place import Placement, PlacementRules, place
from .prune import prune
from .split import Segment, split


@dataclass
class PlanOptions:
    """What, besides the graph, a plan depends on."""

    placement: PlacementRules
    fuse: bool = True


@dataclass
class SpaceBytes:
    """Exact bytes one memory space will need for a plan."""

    weights: int = 0
    states: int = 0
    inputs: int = 0
    arena: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.states + self.inputs + self.arena


@dataclass
class Plan:
    """A compiled graph: what runs where, in which order, at which addresses."""

    graph: Graph
    placement: Placement
    segments: list[Segment]
    arenas: dict[str, ArenaPlan]  # by memory space
    spaces: dict[str, str]  # backend name -> memory space
    fused: Counter[str] = field(default_factory=Counter)

    @property
    def nodes(self) -> Sequence[Tensor]:
        return self.graph.nodes

    def space_of(self, owner: Tensor) -> str:
        """Memory space an owner lives in."""
        return self.spaces[self.placement.of[owner]]

    def leaves(self, role: Role) -> list[Tensor]:
        """Leaves of one role, in the order they were declared."""
        return [t for t in self.graph.leaves.values() if t.role is role]

    def bytes_by_space(self) -> dict[str, SpaceBytes]:
        """Weights count as stored in the file; a backend that repacks says so separately."""
        out = {s: SpaceBytes() for s in dict.fromkeys(self.spaces.values())}
        for role, attribute in (
            (Role.WEIGHT, "weights"),
            (Role.STATE, "states"),
            (Role.INPUT, "inputs"),
        ):
            for t in self.leaves(role):
                b = out[self.space_of(t)]
                setattr(b, attribute, getattr(b, attribute) + round_up(t.nbytes))
        for space, arena in self.arenas.items():
            out[space].arena += arena.nbytes
        return out

    def flops(self) -> int:
        """Operations of one run."""
        return sum(op_spec(n.op).flops(n) for n in self.nodes if n.op)


def compile_graph(graph: Graph, options: PlanOptions) -> Plan:
    """Compile `graph`, which is consumed. Raises PlacementError when a node can run nowhere."""
    order = options.placement.order
    graph.nodes = prune(graph.nodes, graph.outputs)
    fused: Counter[str] = Counter()
    if options.fuse:
        before = Counter(n.op for n in graph.nodes)
        graph = fuse_graph(graph, _supported_where_used(graph, options.placement))
        after = Counter(n.op for n in graph.nodes)
        fused = Counter({op: k for op, k in (after - before).items() if op})
    placement = place(graph.nodes, graph.leaves, options.placement)
    spaces = {b.name: b.space for b in order}
    segments = split(graph.nodes, placement, spaces)
    arenas: dict[str, ArenaPlan] = {}
    for space in dict.fromkeys(spaces.values()):
        arenas[space] = _plan_space(graph, placement, segments, spaces, space)
    return Plan(graph, placement, segments, arenas, spaces, fused)


def _supported_where_used(graph: Graph, rules: PlacementRules) -> Callable[[Tensor], bool]:
    """Whether every backend that the unfused graph runs on has a kernel for a node."""
    names = set(place(graph.nodes, graph.leaves, rules).of[n] for n in graph.nodes)
    used = [b for b in rules.order if b.name in names]
    return lambda node: all(b.supports(node) for b in used)


def _plan_space(
    graph: Graph,
    placement: Placement,
    segments: Sequence[Segment],
    spaces: dict[str, str],
    space: str,
) -> ArenaPlan:
    """Memory of one space: values made there; values copied in are placed by the runtime."""
    here = [n for n in graph.nodes if spaces[placement.of[n]] == space]
    crossing = [
        c.owner
        for s in segments
        for c in s.copies
        if c.source == space and c.owner.role is Role.NODE
    ]
    ours = [t for t in graph.outputs if spaces[placement.of[t.owner]] == space]
    return plan_memory(here, [*ours, *crossing])
