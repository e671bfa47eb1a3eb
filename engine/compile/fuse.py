"""Fusion: rewrite groups of ops into one op that computes the same.

A rule looks at one node and the values it is made of, and says which op could replace them. It only
fires when the values in between are used nowhere else and some backend has a kernel for the result.
Every fused op's reference is the composition it replaces, so turning fusion off must not change
results beyond rounding: that is how to bisect it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gguflow.engine.graph import Graph, Role, Tensor, op_spec


@dataclass(frozen=True)
class Rewrite:
    """Replace a node, and the `inner` nodes only it uses, by `op(srcs, params)`."""

    op: str
    srcs: tuple[Tensor | None, ...]
    inner: tuple[Tensor, ...]
    params: dict[str, Any] = field(default_factory=dict)


Rule = Callable[[Tensor], Rewrite | None]
RULES: list[Rule] = []


def rule(fn: Rule) -> Rule:
    """Register a fusion rule; later rules see the results of earlier ones."""
    RULES.append(fn)
    return fn


def _made_by(t: Tensor | None, op: str) -> Tensor | None:
    return t if t is not None and t.op == op else None


@rule
def norm_then_weight(node: Tensor) -> Rewrite | None:
    """mul(rms_norm(x), w) -> rms_norm_mul(x, w)"""
    if node.op != "mul":
        return None
    norm, w = _made_by(node.srcs[0], "rms_norm"), node.srcs[1]
    if norm is None or w is None or w.shape != norm.shape[-1:]:
        return None
    return Rewrite("rms_norm_mul", (norm.srcs[0], w), (norm,), dict(norm.params))


@rule
def activation_then_gate(node: Tensor) -> Rewrite | None:
    """mul(silu(g), u) -> swiglu(g, u), and the same for gelu and relu"""
    glu = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}
    if node.op != "mul":
        return None
    act, up = node.srcs
    if act is None or up is None or act.op not in glu or act.shape != up.shape:
        return None
    return Rewrite(glu[act.op], (act.srcs[0], up), (act,))


@rule
def project_then_add(node: Tensor) -> Rewrite | None:
    """add(mul_mat(w, x), r) or add(r, mul_mat(w, x)) -> mul_mat_add(w, x, r)"""
    if node.op != "add":
        return None
    a, b = node.srcs
    for product, other in ((a, b), (b, a)):
        if product is None or other is None or product.op != "mul_mat":
            continue
        if product.shape == node.shape and other.shape in (node.shape, node.shape[-1:]):
            return Rewrite("mul_mat_add", (*product.srcs, other), (product,))
    return None


@rule
def gate_and_up(node: Tensor) -> Rewrite | None:
    """swiglu(mul_mat(wg, x), mul_mat(wu, x)) -> mul_mat_swiglu(wg, wu, x)"""
    if node.op != "swiglu" or len(node.srcs) != 2:
        return None
    gate, up = (_made_by(s, "mul_mat") for s in node.srcs)
    if gate is None or up is None or gate is up or gate.srcs[1] is not up.srcs[1]:
        return None
    wg, wu = gate.srcs[0], up.srcs[0]
    if wg is None or wu is None or (wg.dtype, wg.shape) != (wu.dtype, wu.shape):
        return None
    return Rewrite("mul_mat_swiglu", (wg, wu, gate.srcs[1]), (gate, up))


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
    for r in RULES if rules is None else rules:
        uses = _count_uses(done, keep)
        dead: set[Tensor] = set()
        swap: dict[Tensor, Tensor] = {}
        out: list[Tensor] = []
        for node in done:
            node = _resolve(node, swap)
            rewrite = r(node)
            if rewrite is not None and all(uses[i] == 1 and i not in keep for i in rewrite.inner):
                fused = _fused_node(node, rewrite)
                if fused is not None and supports(fused):
                    dead.update(rewrite.inner)
                    swap[node] = fused
                    out.append(fused)
                    continue
            out.append(node)
        done = [n for n in out if n not in dead]
        for old in list(renamed):
            renamed[old] = swap.get(renamed[old], renamed[old])
        renamed.update(swap)
    return done, renamed


def _count_uses(nodes: Sequence[Tensor], keep: set[Tensor]) -> Counter[Tensor]:
    """Consumers of each value; a view's consumers count as its owner's too."""
    uses: Counter[Tensor] = Counter()
    for n in nodes:
        for s in n.live_srcs():
            uses[s] += 1
            while s.role is Role.VIEW:
                s = s.live_srcs()[0]
                uses[s] += 1
    for t in keep:
        uses[t] += 1
        if t.view_of is not None:
            uses[t.view_of] += 1
    return uses


def _resolve(node: Tensor, swap: dict[Tensor, Tensor]) -> Tensor:
    """The node with replaced sources (through views) swapped in; updated in place."""

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

    if swap:
        node.srcs = tuple(current(s) for s in node.srcs)
        if node.view_of in swap:
            node.view_of = swap[node.view_of]
    return node


def _fused_node(node: Tensor, rewrite: Rewrite) -> Tensor | None:
    spec = op_spec(rewrite.op)
    params = spec.bind_params(rewrite.params)
    try:
        dtype, shape = spec.infer(*rewrite.srcs, **params)
    except ValueError:
        return None  # the fused op is stricter than its parts
    if (dtype, tuple(shape)) != (node.dtype, node.shape):
        return None
    return replace(node, op=rewrite.op, srcs=rewrite.srcs, params=params)


def fuse_graph(
    graph: Graph, supports: Callable[[Tensor], bool], rules: Sequence[Rule] | None = None
) -> Graph:
    """`fuse` over a whole graph; the graph itself is consumed and must not be used again."""
    nodes, renamed = fuse(graph.nodes, graph.outputs, supports, rules)
    graph.nodes = nodes
    graph.outputs = [renamed.get(t, t) for t in graph.outputs]
    return graph
