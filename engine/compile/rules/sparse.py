"""The layer of a model whose neurons are mostly zero, as one op."""

from __future__ import annotations

from gguflow.engine.compile.rules.base import Rewrite, Rule, made_by, optional
from gguflow.engine.graph import LEAST_POSITIVE, Tensor, least_above


def sparse_layer(node: Tensor) -> Rewrite | None:
    """axpy_sparse(w_down_t, relu(gate) * up, *which) with gate and up from mul_mat_sparse over the
    same neurons -> sparse_ffn; so does the exact form, where gate is computed for all neurons here
    and the rest where it is above what relu makes zero. relu may be fatrelu; up may go through one
    as well."""
    found = _gated(node.srcs[1]) if node.op == "axpy_sparse" else None
    if found is None:
        return None
    gate, up, cut, relu_up, inner = found
    which = optional(gate, 3) if gate.op == "mul_mat_sparse" else [None, None, None]
    threshold = gate.params.get("threshold", 0.0)
    for reader in (up, node):
        idx, *others = optional(reader, 3)
        least = reader.params["threshold"] == least_above(cut)
        exact = idx is gate and which[0] is None and least
        same = idx is which[0] and (idx is None or reader.params["threshold"] == threshold)
        if others != which[1:] or not (same or exact):
            return None
    if gate is up or gate.srcs[1] is not up.srcs[1]:
        return None
    srcs = (gate.srcs[0], up.srcs[0], node.srcs[0], gate.srcs[1], *which)
    params = {"threshold": threshold, "relu_up": int(relu_up), "cut": cut}
    return Rewrite("sparse_ffn", srcs, (gate, up, *inner), params)


def _gated(h: Tensor | None) -> tuple[Tensor, Tensor, float, bool, tuple[Tensor, ...]] | None:
    """Of relu(gate) * up: gate, up, the cut, whether up goes through a ReLU too, and what lies
    between them and h."""
    if h is None or len(h.srcs) != 2:
        return None
    between: tuple[Tensor, ...]
    if h.op == "reglu":
        gate, second, cut, between = h.srcs[0], h.srcs[1], 0.0, (h,)
    elif h.op == "mul" and (act := made_by(h.srcs[0], "fatrelu")) is not None:
        gate, second, cut, between = act.srcs[0], h.srcs[1], act.params["cut"], (h, act)
    else:
        return None
    relu = _relu(second)
    if relu is not None:
        if relu[1] != cut:
            return None
        second, between = relu[0].srcs[0], (*between, relu[0])
    up = made_by(second, "mul_mat_sparse")
    if gate is None or up is None or gate.op not in ("mul_mat", "mul_mat_sparse"):
        return None
    return gate, up, cut, relu is not None, between


def _relu(t: Tensor | None) -> tuple[Tensor, float] | None:
    """A ReLU and its cut."""
    if t is None or t.op not in ("relu", "fatrelu"):
        return None
    return t, t.params.get("cut", 0.0)


def sparse_layer_without_gate(node: Tensor) -> Rewrite | None:
    """axpy_sparse(w_down_t, relu(up), *which) with up, or up and a bias, from mul_mat_sparse over
    the same neurons -> sparse_ffn; so does the exact form, where up is computed for all neurons
    here and the activations themselves tell which are added. relu may be fatrelu."""
    relu = _relu(node.srcs[1]) if node.op == "axpy_sparse" else None
    if relu is None:
        return None
    (act, cut), bias = relu, None
    up = act.srcs[0]
    between: tuple[Tensor, ...] = (act,)
    if (biased := made_by(up, "add")) is not None:
        (up, bias), between = biased.srcs, (act, biased)
    if up is None or up.op != "mul_mat_sparse":
        return None
    which, mine = optional(up, 3), optional(node, 3)
    threshold = up.params["threshold"]
    exact = mine[0] is act and node.params["threshold"] == LEAST_POSITIVE and which[0] is None
    same = mine[0] is which[0] and (mine[0] is None or node.params["threshold"] == threshold)
    if mine[1:] != which[1:] or not (same or exact):
        return None
    if bias is not None and (bias.shape != up.shape[-1:] or not bias.is_contiguous):
        return None
    srcs = (None, up.srcs[0], node.srcs[0], up.srcs[1], *which, bias)
    return Rewrite("sparse_ffn", srcs, (up, *between), {"threshold": threshold, "cut": cut})


def around_sparse_layer(node: Tensor) -> Rewrite | None:
    """add(sparse_ffn(.., rms_norm_mul(x, norm), ..), r) or add(r, ..) -> norm_sparse_ffn"""
    if node.op != "add":
        return None
    a, b = node.srcs
    for layer, r in ((made_by(a, "sparse_ffn"), b), (made_by(b, "sparse_ffn"), a)):
        norm = made_by(layer.srcs[3], "rms_norm_mul") if layer is not None else None
        if norm is None or layer is None or r is None or r.shape != node.shape:
            continue
        if layer.srcs[0] is None:
            continue
        srcs = (*norm.srcs, *layer.srcs[:3], r, *layer.srcs[4:])
        return Rewrite("norm_sparse_ffn", srcs, (norm, layer), {**norm.params, **layer.params})
    return None


RULES: tuple[Rule, ...] = (sparse_layer, sparse_layer_without_gate, around_sparse_layer)
