"""Launches mul_mat.cu: mul_mat, with a residual or bias, and the gate and up pair."""

from __future__ import annotations

import struct
from dataclasses import replace
from math import prod

from gguflow.engine.graph import F32, Tensor

from . import mul_mat_gemm, mul_mat_mma
from .elementwise import map_launch
from .gemm import Gemm
from .launch import (
    MAX_GRID_YZ,
    Call,
    DeviceInfo,
    Kernel,
    Launch,
    Operand,
    ceil_div,
    cpp_type,
    pack,
)
from .mul_mat_vec import multiply_few, swiglu_few, takes

OPS = ("mul_mat", "mul_mat_add", "mul_mat_swiglu")
FEW = 8  # columns up to which a warp a row is used
TILE = 64
WARPS = 4
MANY = (mul_mat_mma, mul_mat_gemm)  # for more columns, the first that takes the operands


def supports(node: Tensor) -> bool:
    m, batch = node.shape[-2], prod(node.shape[:-2])
    return ceil_div(m, TILE) <= MAX_GRID_YZ and batch <= MAX_GRID_YZ


def multiply(dst: Operand, w: Operand, x: Operand, r: Operand | None = None) -> Launch:
    """dst = x w^T + r."""
    if r is not None:  # a dimension of length one is repeated
        nb = tuple(s if n > 1 else 0 for n, s in zip(r.ne, r.nb, strict=True))
        r = replace(r, ne=dst.ne, nb=nb)
    ratios = struct.pack("@2q", x.ne[2] // w.ne[2], x.ne[3] // w.ne[3])
    args = pack(dst, w, x, r, ratios)
    n, m, batch = w.ne[1], x.ne[1], x.ne[2] * x.ne[3]
    if m <= FEW:
        columns = 1 if m == 1 else FEW
        kernel = Kernel("mul_mat.cu", f"mul_mat_vec<{cpp_type(w.dtype)}, {columns}>")
        return Launch(kernel, (ceil_div(n, WARPS), 1, batch), (32 * WARPS, 1, 1), args)
    kernel = Kernel("mul_mat.cu", f"mul_mat_tile<{cpp_type(w.dtype)}>")
    return Launch(kernel, (ceil_div(n, TILE), ceil_div(m, TILE), batch), (256, 1, 1), args)


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    plain = 2 * node.nbytes if node.op == "mul_mat_swiglu" else 0
    if node.shape[-2] > FEW:
        plain = max(plain, *(way.scratch_bytes(node, device) for way in MANY))
    return plain


def _few(call: Call) -> Launch | None:
    """The launch of mul_mat_vec.cu, where it takes the operands."""
    if call.node.op == "mul_mat_swiglu":
        gate, up, x = (call.src(i) for i in range(3))
        if gate.dtype is up.dtype and takes(call.dst, [gate, up], x, call.device):
            return swiglu_few(call.device, call.dst, gate, up, x)
        return None
    w, x, r = call.src(0), call.src(1), call.optional(2)
    if takes(call.dst, [w], x, call.device) and (r is None or r.nb[0] == 4):
        return multiply_few(call.device, call.dst, w, x, r)
    return None


def launches(call: Call) -> list[Launch | Gemm]:
    op = call.node.op
    if call.dst.ne[1] > FEW:
        for way in MANY:
            if way.applies(call.node, call.srcs, call.device):
                return way.launches(call)
    few = _few(call)
    if few is not None:
        return [few]
    if op != "mul_mat_swiglu":
        return [multiply(call.dst, call.src(0), call.src(1), call.optional(2))]
    dense = Operand.of(Tensor("scratch", F32, call.node.shape, call.node.role), call.scratch)
    halves = dense, dense.shift(call.node.nbytes)
    x = call.src(2)
    return [
        *(multiply(half, call.src(i), x) for i, half in enumerate(halves)),
        *map_launch("glu.cu", "gated<silu>", call.dst, halves, call.device),
    ]
