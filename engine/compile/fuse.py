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

from gguflow.engine.graph import LEAST_POSITIVE, Graph, Role, Tensor, op_spec


@dataclass(frozen=True)
class Rewrite:
    """Replace a node, and the `inner` nodes only it and each other use, by `op(srcs, params)`.

    before: new nodes that `srcs` use; they run right before it.
    """

    op: str
    srcs: tuple[Tensor | None, ...]
    inner: tuple[Tensor, ...]
    params: dict[str, Any] = field(default_factory=dict)
    before: tuple[Tensor, ...] = ()


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


@rule
def norm_then_project(node: Tensor) -> Rewrite | None:
    """mul_mat(w, rms_norm_mul(x, norm)) -> norm_mul_mat(x, norm, w); the same for gate and up"""
    if node.op not in ("mul_mat", "mul_mat_swiglu"):
        return None
    *weights, h = node.srcs
    norm = _made_by(h, "rms_norm_mul")
    if norm is None:
        return None
    return Rewrite(f"norm_{node.op}", (*norm.srcs, *weights), (norm,), dict(norm.params))


@rule
def project_then_relu(node: Tensor) -> Rewrite | None:
    """relu(mul_mat(w, x)) -> mul_mat_relu(w, x)"""
    product = _made_by(node.srcs[0], "mul_mat") if node.op == "relu" else None
    return None if product is None else Rewrite("mul_mat_relu", product.srcs, (product,))


def _whole(t: Tensor | None) -> Tensor | None:
    """The node behind views that show all of it in its own order."""
    while t is not None and t.role is Role.VIEW:
        (s,) = t.live_srcs()
        same = t.view_offset == s.view_offset and t.size == s.size
        if not (same and t.is_contiguous and s.is_contiguous):
            return None
        t = s
    return t


def _rotated(t: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """(rope, mul_mat) where t is a rotated product."""
    rope = _made_by(_whole(t), "rope")
    product = _made_by(_whole(rope.srcs[0]), "mul_mat") if rope is not None else None
    return (rope, product) if rope is not None and product is not None else None


@rule
def before_attention(node: Tensor) -> Rewrite | None:
    """attention(rope(wq h), set_rows(keys, rope(wk h)), set_rows(values, wv h)), h = rms_norm_mul
    -> attention(norm_qkv_rope, keys, values)"""
    if node.op != "attention":
        return None
    q, (k_rows, v_rows) = _rotated(node.srcs[0]), (_whole(s) for s in node.srcs[1:3])
    k_set, v_set = _made_by(k_rows, "set_rows"), _made_by(v_rows, "set_rows")
    k = _rotated(k_set.srcs[1]) if k_set is not None else None
    v = _made_by(_whole(v_set.srcs[1]), "mul_mat") if v_set is not None else None
    if q is None or k is None or v is None or k_set is None or v_set is None:
        return None
    (q_rope, q_mm), (k_rope, k_mm) = q, k
    norm = _made_by(_whole(q_mm.srcs[1]), "rms_norm_mul")
    pos, rows = q_rope.srcs[1], k_set.srcs[2]
    if (
        norm is None
        or any(_whole(m.srcs[1]) is not norm for m in (k_mm, v))
        or _whole(k_rope.srcs[1]) is not _whole(pos)
        or _whole(v_set.srcs[2]) is not _whole(rows)
        or dict(q_rope.params) != dict(k_rope.params)
        or q_rope.srcs[2:] != k_rope.srcs[2:]
    ):
        return None
    states = k_set.srcs[0], v_set.srcs[0]
    params = {**norm.params, "head_dim": q_rope.shape[2], **q_rope.params}
    srcs = (*norm.srcs, q_mm.srcs[0], k_mm.srcs[0], v.srcs[0], pos, rows, *states,
            *q_rope.srcs[2:])  # fmt: skip
    made = _fused_node(q_rope, Rewrite("norm_qkv_rope", srcs, (), params))
    if made is None:
        return None
    views = (
        replace(t, srcs=(s,)) if t is not None and t.role is Role.VIEW else s
        for t, s in zip(node.srcs[1:3], states, strict=True)
    )
    inner = (norm, q_mm, k_mm, v, q_rope, k_rope, k_set, v_set)
    return Rewrite("attention", (made, *views, *node.srcs[3:]), inner, dict(node.params), (made,))


def _optional(node: Tensor, n: int) -> list[Tensor | None]:
    """The last n sources of a node, None for those left off."""
    most = op_spec(node.op or "").n_srcs[1]
    return [*node.srcs, *(None,) * (most - len(node.srcs))][most - n :]


@rule
def sparse_layer(node: Tensor) -> Rewrite | None:
    """axpy_sparse(w_down_t, reglu(gate, up), *which) with gate and up from mul_mat_sparse over the
    same neurons -> sparse_ffn; so does the exact form, where gate is computed for all neurons here
    and the rest where it is positive (LEAST_POSITIVE)"""
    h = _made_by(node.srcs[1], "reglu") if node.op == "axpy_sparse" else None
    if h is None or len(h.srcs) != 2:
        return None
    gate, relu = h.srcs[0], _made_by(h.srcs[1], "relu")
    up = _made_by(relu.srcs[0] if relu is not None else h.srcs[1], "mul_mat_sparse")
    if gate is None or up is None or gate.op not in ("mul_mat", "mul_mat_sparse"):
        return None
    which = _optional(gate, 3) if gate.op == "mul_mat_sparse" else [None, None, None]
    threshold = gate.params.get("threshold", 0.0)
    for reader in (up, node):
        idx, *others = _optional(reader, 3)
        exact = idx is gate and which[0] is None and reader.params["threshold"] == LEAST_POSITIVE
        same = idx is which[0] and (idx is None or reader.params["threshold"] == threshold)
        if others != which[1:] or not (same or exact):
            return None
    if gate is up or gate.srcs[1] is not up.srcs[1]:
        return None
    srcs = (gate.srcs[0], up.srcs[0], node.srcs[0], gate.srcs[1], *which)
    params = {"threshold": threshold, "relu_up": int(relu is not None)}
    return Rewrite("sparse_ffn", srcs, (gate, up, h, *([relu] if relu is not None else [])), params)


@rule
def around_sparse_layer(node: Tensor) -> Rewrite | None:
    """add(sparse_ffn(.., rms_norm_mul(x, norm), ..), r) or add(r, ..) -> norm_sparse_ffn"""
    if node.op != "add":
        return None
    a, b = node.srcs
    for layer, r in ((_made_by(a, "sparse_ffn"), b), (_made_by(b, "sparse_ffn"), a)):
        norm = _made_by(layer.srcs[3], "rms_norm_mul") if layer is not None else None
        if norm is None or layer is None or r is None or r.shape != node.shape:
            continue
        srcs = (*norm.srcs, *layer.srcs[:3], r, *layer.srcs[4:])
        return Rewrite("norm_sparse_ffn", srcs, (norm, layer), {**norm.params, **layer.params})
    return None


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
            if rewrite is not None and _only_used_inside(node, rewrite.inner, uses):
                fused = _fused_node(node, rewrite)
                if fused is not None and all(supports(n) for n in (*rewrite.before, fused)):
                    dead.update(rewrite.inner)
                    swap[node] = fused
                    out += [*rewrite.before, fused]
                    continue
            out.append(node)
        done = [n for n in out if n not in dead]
        for old in list(renamed):
            renamed[old] = swap.get(renamed[old], renamed[old])
        renamed.update(swap)
    return done, renamed


def _only_used_inside(node: Tensor, inner: Sequence[Tensor], uses: Counter[Tensor]) -> bool:
    """Whether nobody but `node` and each other uses the inner nodes."""
    inside = _count_uses([node, *inner], set())
    return all(uses[i] == inside[i] for i in inner)


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
