"""Launches products of one column with more around them than there is of several: mul_mat_vec.cu.

GELU, or a bias and a residual, behind it; several of one column as one. Of more columns, and where
one has to have the bits of several, these are ops of their own.
"""

from __future__ import annotations

from gguflow.engine.graph import Tensor

from .launch import Call, DeviceInfo, Launch, Operand, register
from .mul_mat_vec import LEAST_SHARED, joined_few, multiply_few, swiglu_few, takes

# Where x, the weights, and what stands beside them are among an op's sources.
_PLACES: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "mul_mat_gelu": (1, (0,), (2,)),
    "mul_mat_bias_add": (1, (0,), (2, 3)),
    "mul_mat_geglu": (2, (0, 1), ()),
    "norm_mul_mat_geglu": (0, (2, 3), (1,)),
    "mul_mat_joined": (0, (2, 3, 4, 5), (1,)),
}
OPS = tuple(_PLACES)


def supports(node: Tensor) -> bool:
    operands = [None if s is None else Operand.of(s, s.view_offset) for s in node.srcs]
    at, of_weights, at_beside = _PLACES[node.op or ""]
    x, n = operands[at], len(operands)
    weights = [w for w in (operands[i] for i in of_weights if i < n) if w is not None]
    beside = [operands[i] for i in at_beside if i < n]
    assert x is not None
    return (
        x.ne[1] == 1
        and len({(w.dtype, w.nb[1]) for w in weights}) == 1
        and all(o is None or (o.nb[0] == 4 and o.address % 16 == 0) for o in beside)
        and takes(Operand.of(node, 0), weights, x, DeviceInfo(shared_per_block=LEAST_SHARED))
    )


def _never(node: Tensor) -> bool:
    return False


def launches(call: Call) -> list[Launch]:
    device, dst, p = call.device, call.dst, call.node.params
    if call.node.op == "mul_mat_gelu":
        kind = "GELU_ERF" if p["erf"] else "GELU"
        w, x, b = call.src(0), call.src(1), call.optional(2)
        return [multiply_few(device, dst, w, x, b, kind=kind)]
    if call.node.op == "mul_mat_bias_add":
        w, x, b, r = (call.src(i) for i in range(4))
        return [multiply_few(device, dst, w, x, r, kind="BIASED", bias=b)]
    if call.node.op == "mul_mat_geglu":
        gate, up, x = (call.src(i) for i in range(3))
        return [swiglu_few(device, dst, gate, up, x, kind="GEGLU")]
    if call.node.op == "mul_mat_joined":
        weights = [w for w in call.srcs[2:] if w is not None]
        return [joined_few(device, dst, weights, call.src(0), call.optional(1), p["eps"])]
    x, norm, gate, up = (call.src(i) for i in range(4))
    return [swiglu_few(device, dst, gate, up, x, norm, p["eps"], kind="GEGLU")]


register(OPS, launches, supports=supports, supports_equal=_never)
