"""Rules for any model: norms, gates, products with what comes before and after them."""

from __future__ import annotations

from gguflow.engine.compile.rules.base import Rewrite, Rule, made_by
from gguflow.engine.graph import Tensor


def norm_then_weight(node: Tensor) -> Rewrite | None:
    """mul(rms_norm(x), w) -> rms_norm_mul(x, w)"""
    if node.op != "mul":
        return None
    norm, w = made_by(node.srcs[0], "rms_norm"), node.srcs[1]
    if norm is None or w is None or w.shape != norm.shape[-1:]:
        return None
    return Rewrite("rms_norm_mul", (norm.srcs[0], w), (norm,), dict(norm.params))


def norm_then_add(node: Tensor) -> Rewrite | None:
    """add(rms_norm_mul(x, w), r) or add(r, rms_norm_mul(x, w)) -> rms_norm_add(x, w, r)"""
    if node.op != "add":
        return None
    a, b = node.srcs
    for norm, other in ((made_by(a, "rms_norm_mul"), b), (made_by(b, "rms_norm_mul"), a)):
        if norm is None or other is None or other is norm:
            continue
        if norm.shape == other.shape == node.shape:
            return Rewrite("rms_norm_add", (*norm.srcs, other), (norm,), dict(norm.params))
    return None


def activation_then_gate(node: Tensor) -> Rewrite | None:
    """mul(silu(g), u) -> swiglu(g, u), and the same for gelu and relu"""
    glu = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}
    if node.op != "mul":
        return None
    act, up = node.srcs
    if act is None or up is None or act.op not in glu or act.shape != up.shape:
        return None
    return Rewrite(glu[act.op], (act.srcs[0], up), (act,))


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


def bias_then_add(node: Tensor) -> Rewrite | None:
    """add(mul_mat_add(w, x, b), r) or add(r, ..) -> mul_mat_bias_add(w, x, b, r)"""
    if node.op != "add":
        return None
    a, b = node.srcs
    for product, other in ((made_by(a, "mul_mat_add"), b), (made_by(b, "mul_mat_add"), a)):
        if product is not None and other is not None and other is not product:
            return Rewrite("mul_mat_bias_add", (*product.srcs, other), (product,))
    return None


def sum_then_add(node: Tensor) -> Rewrite | None:
    """add(all_reduce(parts), r) or add(r, all_reduce(parts)) -> all_reduce_add(r, parts)"""
    if node.op != "add":
        return None
    a, b = node.srcs
    for total, other in ((a, b), (b, a)):
        if total is None or total.op != "all_reduce" or other is None:
            continue
        # Kernels read a residual in whole words, from where its memory begins. Two sums that are
        # added to each other stay where they are, so that all devices make them in one order; one
        # that has its residual already, as the block before leaves it, stays anyway.
        if not other.view_offset and other.owner.op != "all_reduce":
            return Rewrite("all_reduce_add", (other, *total.srcs), (total,))
    return None


def gate_by_sigmoid(node: Tensor) -> Rewrite | None:
    """mul(x, sigmoid(gate)) or mul(sigmoid(gate), x) -> sigmoid_mul(gate, x)"""
    if node.op != "mul":
        return None
    a, b = node.srcs
    for act, x in ((made_by(a, "sigmoid"), b), (made_by(b, "sigmoid"), a)):
        if act is not None and x is not None and x is not act and x.shape == act.shape:
            return Rewrite("sigmoid_mul", (act.srcs[0], x), (act,))
    return None


def gate_and_up(node: Tensor) -> Rewrite | None:
    """swiglu(mul_mat(wg, x), mul_mat(wu, x)) -> mul_mat_swiglu(wg, wu, x)"""
    if node.op != "swiglu" or len(node.srcs) != 2:
        return None
    gate, up = (made_by(s, "mul_mat") for s in node.srcs)
    if gate is None or up is None or gate is up or gate.srcs[1] is not up.srcs[1]:
        return None
    wg, wu = gate.srcs[0], up.srcs[0]
    if wg is None or wu is None or (wg.dtype, wg.shape) != (wu.dtype, wu.shape):
        return None
    return Rewrite("mul_mat_swiglu", (wg, wu, gate.srcs[1]), (gate, up))


def norm_then_project(node: Tensor) -> Rewrite | None:
    """mul_mat(w, rms_norm_mul(x, norm)) -> norm_mul_mat(x, norm, w); the same for gate and up"""
    if node.op not in ("mul_mat", "mul_mat_swiglu"):
        return None
    *weights, h = node.srcs
    norm = made_by(h, "rms_norm_mul")
    if norm is None:
        return None
    return Rewrite(f"norm_{node.op}", (*norm.srcs, *weights), (norm,), dict(norm.params))


def project_then_relu(node: Tensor) -> Rewrite | None:
    """relu(mul_mat(w, x)) -> mul_mat_relu(w, x)"""
    product = made_by(node.srcs[0], "mul_mat") if node.op == "relu" else None
    return None if product is None else Rewrite("mul_mat_relu", product.srcs, (product,))


RULES: tuple[Rule, ...] = (
    norm_then_weight,
    norm_then_add,
    activation_then_gate,
    gate_by_sigmoid,
    project_then_add,
    bias_then_add,
    sum_then_add,
    gate_and_up,
    norm_then_project,
    project_then_relu,
)
