"""Rules for products with an activation beside SiLU's: GELU, and the experts of a layer."""

from __future__ import annotations

from gguflow.engine.compile.rules.base import Rewrite, Rule, made_by
from gguflow.engine.graph import Tensor

OF_EXPERTS = ("swiglu", "geglu", "swiglu_clamped")  # what mul_mat_id_glu knows


def _pair(node: Tensor, op: str) -> tuple[Tensor, Tensor] | None:
    """(gate, up) of a gated activation, both by `op` and with weights of one type and shape."""
    gate, up = (*node.srcs, None, None)[:2]
    if gate is None or up is None or gate is up or (gate.op, up.op) != (op, op):
        return None
    wg, wu = gate.srcs[0], up.srcs[0]
    if wg is None or wu is None or (wg.dtype, wg.shape) != (wu.dtype, wu.shape):
        return None
    return gate, up


def gelu_gate_and_up(node: Tensor) -> Rewrite | None:
    """geglu(mul_mat(wg, x), mul_mat(wu, x)) -> mul_mat_geglu(wg, wu, x)"""
    pair = _pair(node, "mul_mat") if node.op == "geglu" else None
    if pair is None or pair[0].srcs[1] is not pair[1].srcs[1]:
        return None
    gate, up = pair
    return Rewrite("mul_mat_geglu", (gate.srcs[0], up.srcs[0], gate.srcs[1]), pair)


def norm_then_gelu_gate_and_up(node: Tensor) -> Rewrite | None:
    """mul_mat_geglu(wg, wu, rms_norm_mul(x, norm)) -> norm_mul_mat_geglu(x, norm, wg, wu)"""
    norm = made_by(node.srcs[2], "rms_norm_mul") if node.op == "mul_mat_geglu" else None
    if norm is None:
        return None
    srcs = (*norm.srcs, *node.srcs[:2])
    return Rewrite("norm_mul_mat_geglu", srcs, (norm,), dict(norm.params))


def project_then_gelu(node: Tensor) -> Rewrite | None:
    """gelu(mul_mat(w, x)) or gelu(mul_mat_add(w, x, bias)) -> mul_mat_gelu(w, x, bias); the same
    for gelu_erf"""
    product = node.srcs[0] if node.op in ("gelu", "gelu_erf") else None
    if product is None or product.op not in ("mul_mat", "mul_mat_add"):
        return None
    params = {"erf": int(node.op == "gelu_erf")}
    return Rewrite("mul_mat_gelu", product.srcs, (product,), params)


def experts_gate_and_up(node: Tensor) -> Rewrite | None:
    """swiglu(mul_mat_id(wg, x, ids), mul_mat_id(wu, x, ids)), or another gated activation ->
    mul_mat_id_glu(wg, wu, x, ids)"""
    pair = _pair(node, "mul_mat_id") if node.op in OF_EXPERTS else None
    if pair is None or any(a is not b for a, b in zip(*(t.srcs[1:3] for t in pair), strict=True)):
        return None
    gate, up = pair
    biases = [(*t.srcs, None)[3] for t in pair]
    srcs = (gate.srcs[0], up.srcs[0], *gate.srcs[1:3], *(biases if any(biases) else ()))
    return Rewrite("mul_mat_id_glu", srcs, pair, {"act": node.op, **node.params})


def experts_down_and_sum(node: Tensor) -> Rewrite | None:
    """moe_sum(mul_mat_id(w, x, ids), shares) -> mul_mat_id_sum(w, x, ids, shares)"""
    if node.op != "moe_sum":
        return None
    product, shares = made_by(node.srcs[0], "mul_mat_id"), node.srcs[1]
    if product is None:
        return None
    bias = (*product.srcs, None)[3]
    srcs = (*product.srcs[:3], shares, *([] if bias is None else [bias]))
    return Rewrite("mul_mat_id_sum", srcs, (product,))


def experts_sum_then_add(node: Tensor) -> Rewrite | None:
    """add(mul_mat_id_sum(w, x, ids, shares), r) or add(r, ..) -> mul_mat_id_sum(.., r)"""
    if node.op != "add":
        return None
    a, b = node.srcs
    for total, r in ((made_by(a, "mul_mat_id_sum"), b), (made_by(b, "mul_mat_id_sum"), a)):
        if total is None or r is None or r.shape != node.shape:
            continue
        bias, before = (*total.srcs, None, None)[4:6]
        if before is None:
            return Rewrite("mul_mat_id_sum", (*total.srcs[:4], bias, r), (total,))
    return None


RULES: tuple[Rule, ...] = (
    gelu_gate_and_up,
    norm_then_gelu_gate_and_up,
    project_then_gelu,
    experts_gate_and_up,
    experts_down_and_sum,
    experts_sum_then_add,
)
