"""Launches mul_mat.cu: mul_mat, with a residual or bias, and the gate and up pair."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from types import ModuleType

from gguflow.engine.graph import F32, Tensor

from . import mul_mat_batch, mul_mat_gemm, mul_mat_mma
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
    register,
)
from .mul_mat_rows import repeated
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
    r = None if r is None else repeated(r, dst.ne)
    ratios = struct.pack("@2q", x.ne[2] // w.ne[2], x.ne[3] // w.ne[3])
    args = pack(dst, w, x, r, ratios)
    n, m, batch = w.ne[1], x.ne[1], x.ne[2] * x.ne[3]
    if m <= FEW:
        columns = 1 if m == 1 else FEW
        kernel = Kernel("mul_mat.cu", f"mul_mat_vec<{cpp_type(w.dtype)}, {columns}>")
        return Launch(kernel, (ceil_div(n, WARPS), 1, batch), (32 * WARPS, 1, 1), args)
    kernel = Kernel("mul_mat.cu", f"mul_mat_tile<{cpp_type(w.dtype)}>")
    return Launch(kernel, (ceil_div(n, TILE), ceil_div(m, TILE), batch), (256, 1, 1), args)


def scratch_bytes(node: Tensor, device: DeviceInfo, most: int | None = None) -> int:
    plain = 2 * node.nbytes if node.op == "mul_mat_swiglu" else 0
    return max([plain, *(way.scratch_bytes(node, device) for way in _ways(node, device, most))])


def _takes_few(
    op: str | None, dst: Operand, srcs: Sequence[Operand | None], device: DeviceInfo
) -> bool:
    """Whether mul_mat_vec.cu can multiply these."""
    n = 2 if op == "mul_mat_swiglu" else 1
    *weights, x = (s for s in srcs[: n + 1] if s is not None)
    r = srcs[2] if n == 1 and len(srcs) > 2 else None
    same = all(w.dtype is weights[0].dtype for w in weights)
    return same and takes(dst, weights, x, device) and (r is None or r.nb[0] == 4)


def _ways(node: Tensor, device: DeviceInfo, most: int | None) -> tuple[ModuleType, ...]:
    """Those for many columns that may be used, the first that takes the operands; none for up to
    `most` that mul_mat_vec.cu takes. Known from shapes and views alone, because scratch memory is
    sized before there are addresses."""
    m, first = node.shape[-2], (mul_mat_batch,)
    if m == 1:
        return first if device.equal_bits and most is None else ()
    srcs = [None if s is None else Operand.of(s, s.view_offset) for s in node.srcs]
    if m > FEW or not _takes_few(node.op, Operand.of(node, 0), srcs, device):
        return (*first, *MANY)
    if m <= (mul_mat_batch.vec_most(node, srcs, device) if most is None else most):
        return ()
    quantized = node.live_srcs()[0].dtype.is_quantized
    return (*first, mul_mat_mma if quantized else mul_mat_gemm)


def _way(node: Tensor, device: DeviceInfo) -> tuple[ModuleType | None, tuple[Operand | None, ...]]:
    """For many columns, the one that takes a node, as far as is known without addresses; and its
    operands."""
    srcs = tuple(None if s is None else Operand.of(s, s.view_offset) for s in node.srcs)
    ways = _ways(node, device, None)
    return next((w for w in ways if w.applies(node, srcs, device)), None), srcs


def rounds_to(node: Tensor, device: DeviceInfo) -> str | None:
    """As `launch.rounds_to`."""
    way, srcs = _way(node, device)
    if way is mul_mat_batch:
        return mul_mat_batch.rounds_to(node, srcs, device)
    return mul_mat_gemm.rounds_to(node, srcs) if way is mul_mat_gemm else None


def strided(node: Tensor, device: DeviceInfo) -> bool:
    """As `launch.supports_strides`."""
    if node.op != "mul_mat" or len(node.shape) != 2:
        return False
    way, _ = _way(node, device)
    return way is not mul_mat_mma and has_float_rows(node)


def has_float_rows(node: Tensor) -> bool:
    """Whether rows are dense floats, however far apart."""
    return (node.strides[1], node.strides[0] % 4) == (4, 0)


def launches(call: Call, most: int | None = None) -> list[Launch | Gemm]:
    """most: up to so many columns mul_mat_vec.cu, which rounds no column of float weights; None:
    while it is fastest."""
    op, dst, srcs, device = call.node.op, call.dst, call.srcs, call.device
    if most is None and (compact := mul_mat_batch.compact_launches(call)):
        return [*compact]
    for way in _ways(call.node, device, most):
        if way.applies(call.node, srcs, device):
            return way.launches(call)
    if _takes_few(op, dst, srcs, device):
        if op == "mul_mat_swiglu":
            return [swiglu_few(device, dst, call.src(0), call.src(1), call.src(2))]
        return [multiply_few(device, dst, call.src(0), call.src(1), call.optional(2))]
    if op != "mul_mat_swiglu":
        return [multiply(call.dst, call.src(0), call.src(1), call.optional(2))]
    dense = Operand.of(Tensor("scratch", F32, call.node.shape, call.node.role), call.scratch)
    halves = dense, dense.shift(call.node.nbytes)
    x = call.src(2)
    return [
        *(multiply(half, call.src(i), x) for i, half in enumerate(halves)),
        *map_launch("glu.cu", "gated<silu>", call.dst, halves, call.device),
    ]


register(
    OPS, launches, supports=supports, scratch_bytes=scratch_bytes, rounds_to=rounds_to,
    strided=strided,
)  # fmt: skip
