"""Fusion: rewrite groups of ops into one op that computes the same.

A rule looks at one node and the values it is made of, and says which op could replace them. It only
fires when the values in between are used nowhere else and some backend has a kernel for the result.
Every fused op's reference is the composition it replaces, so turning fusion off must not change
results beyond rounding: that is how to bisect it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from gguflow.engine.compile.rules import RULES, Rule, fused_node
from gguflow.engine.graph import Graph, Role, Tensor


def fuse(
    nodes: Sequence[Tensor],
    outputs: Iterable[Tensor],
    supports: Callable[[Tensor], bool],
    rules: Sequence[Rule] | None = None,
) -> tuple[list[Tensor], dict[Tensor, Tensor]]:
    """Apply the rules until none fires.

    nodes: ops in execution order; outputs: values the host reads; supports: whether a fused node
    would have a kernel. Returns the new nodes and a map from each replaced value to its successor.
    """
    done = list(nodes)
    renamed: dict[Tensor, Tensor] = {}
    keep = set(outputs)
    uses: Mapping[Tensor, int] | None = (
        None  # of `done`; counted when a rule asks, which most never do
    )
    for r in RULES if rules is None else rules:
        dead: set[Tensor] = set()
        swap: dict[Tensor, Tensor] = {}
        out: list[Tensor] = []
        for node in done:
            if swap:
                _resolve(node, swap)
            rewrite = r(node)
            if rewrite is not None and uses is None:
                uses = _count_uses(done, keep)
            if rewrite is not None and uses and _only_used_inside(node, rewrite.inner, uses):
                fused = fused_node(node, rewrite)
                if fused is not None and all(supports(n) for n in (*rewrite.before, fused)):
                    dead.update(rewrite.inner)
                    swap[node] = fused
                    out += [*rewrite.before, fused]
                    continue
            out.append(node)
        if not swap:
            continue
        done, uses = [n for n in out if n not in dead], None
        for old in list(renamed):
            renamed[old] = swap.get(renamed[old], renamed[old])
        renamed.update(swap)
    return done, renamed


def _only_used_inside(node: Tensor, inner: Sequence[Tensor], uses: Mapping[Tensor, int]) -> bool:
    """Whether nobody but `node` and each other uses the inner nodes."""
    inside = _count_uses([node, *inner], set())
    return all(uses[i] == inside[i] for i in inner)


def _count_uses(nodes: Sequence[Tensor], keep: set[Tensor]) -> Mapping[Tensor, int]:
    """Consumers of each value; a view's consumers count as its owner's too."""
    uses: defaultdict[Tensor, int] = defaultdict(int)
    for n in nodes:
        for s in n.srcs:
            while s is not None:
                uses[s] += 1
                s = s.srcs[0] if s.role is Role.VIEW else None
    for t in keep:
        uses[t] += 1
        if t.view_of is not None:
            uses[t.view_of] += 1
    return uses


def _resolve(node: Tensor, swap: dict[Tensor, Tensor]) -> None:
    """Swaps in a node's replaced sources, also those that views are of."""

    def current(s: Tensor | None) -> Tensor | None:
        if s is None:
            return None
        if s in swap:
            return swap[s]
        if s.role is Role.VIEW:
            s.srcs = tuple(current(x) for x in s.srcs)
            if s.view_of in swap:
                s.view_of = swap[s.view_of]
        return s

    for s in node.srcs:
        if s is not None and (s in swap or s.role is Role.VIEW):
            node.srcs = tuple([current(s) for s in node.srcs])
            break
    if node.view_of in swap:
        node.view_of = swap[node.view_of]


def fuse_graph(
    graph: Graph, supports: Callable[[Tensor], bool], rules: Sequence[Rule] | None = None
) -> Graph:
    """`fuse` over a whole graph; the graph itself is consumed and must not be used again."""
    nodes, renamed = fuse(graph.nodes, graph.outputs, supports, rules)
    graph.nodes = nodes
    graph.outputs = [renamed.get(t, t) for t in graph.outputs]
    return graph
