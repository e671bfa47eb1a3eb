"""The layer of a model whose neurons are mostly zero, as one op."""

from __future__ import annotations

from gguflow.engine.compile.rules.base import Rewrite, Rule, made_by, optional
from gguflow.engine.graph import LEAST_POSITIVE, Tensor


def sparse_layer(node: Tensor) -> Rewrite | None:
    """axpy_sparse(w_down_t, reglu(gate, up), *which) with gate and up from mul_mat_sparse over the
    same neurons -> sparse_ffn; so does the exact form, where gate is computed for all neurons here
    and the rest where it is positive (LEAST_POSITIVE)"""
    h = made_by(node.srcs[1], "reglu") if node.op == "axpy_sparse" else None
    if h is None or len(h.srcs) != 2:
        return None
    gate, relu = h.srcs[0], made_by(h.srcs[1], "relu")
    up = made_by(relu.srcs[0] if relu is not None else h.srcs[1], "mul_mat_sparse")
    if gate is None or up is None or gate.op not in ("mul_mat", "mul_mat_sparse"):
        return None
    which = optional(gate, 3) if gate.op == "mul_mat_sparse" else [None, None, None]
    threshold = gate.params.get("threshold", 0.0)
    for reader in (up, node):
        idx, *others = optional(reader, 3)
        exact = idx is gate and which[0] is None and reader.params["threshold"] == LEAST_POSITIVE
        same = idx is which[0] and (idx is None or reader.params["threshold"] == threshold)
        if others != which[1:] or not (same or exact):
            return None
    if gate is up or gate.srcs[1] is not up.srcs[1]:
        return None
    srcs = (gate.srcs[0], up.srcs[0], node.srcs[0], gate.srcs[1], *which)
    params = {"threshold": threshold, "relu_up": int(relu is not None)}
    return Rewrite("sparse_ffn", srcs, (gate, up, h, *([relu] if relu is not None else [])), params)


def around_sparse_layer(node: Tensor) -> Rewrite | None:
    """add(sparse_ffn(.., rms_norm_mul(x, norm), ..), r) or add(r, ..) -> norm_sparse_ffn"""
    if node.op != "add":
        return None
    a, b = node.srcs
    for layer, r in ((made_by(a, "sparse_ffn"), b), (made_by(b, "sparse_ffn"), a)):
        norm = made_by(layer.srcs[3], "rms_norm_mul") if layer is not None else None
        if norm is None or layer is None or r is None or r.shape != node.shape:
            continue
        srcs = (*norm.srcs, *layer.srcs[:3], r, *layer.srcs[4:])
        return Rewrite("norm_sparse_ffn", srcs, (norm, layer), {**norm.params, **layer.params})
    return None


RULES: tuple[Rule, ...] = (sparse_layer, around_sparse_layer)
