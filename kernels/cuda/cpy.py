"""Launches cpy.cu: plain types through the element-wise template, quantized ones by blocks."""

from __future__ import annotations

from gguflow.engine.graph import Tensor

from .copy import copy_launch
from .elementwise import map_launch
from .launch import Call, Kernel, Launch, ceil_div, cpp_type, pack, register

OPS = ("cpy",)
BLOCK = 128
EXACT = ("-fmad=false",)  # the K-quants' scale search must round as it does elsewhere


def supports(node: Tensor) -> bool:
    x = node.live_srcs()[0]
    types = (node.dtype, x.dtype)
    if any(not t.is_quantized and t.name not in ("f32", "f16", "bf16") for t in types):
        return False
    return node.dtype is not x.dtype or x.dtype.block == 1


def launches(call: Call) -> list[Launch]:
    dst, x = call.dst, call.src(0)
    if dst.dtype is x.dtype:
        return [copy_launch(dst, x, call.device)]
    if dst.dtype.block == x.dtype.block == 1:
        return map_launch("cpy.cu", "identity", dst, [x], call.device)
    unit = max(dst.dtype.block, 8 if x.dtype.is_quantized else 1)
    n_units = dst.size // unit
    entry = f"cpy_blocks<{cpp_type(dst.dtype)}, {cpp_type(x.dtype)}>"
    kernel = Kernel("cpy.cu", entry, EXACT)
    grid = min(ceil_div(n_units, BLOCK), call.device.sm_count * 64)
    return [Launch(kernel, (grid, 1, 1), (BLOCK, 1, 1), pack(dst, x), dependent=True)]


register(OPS, launches, supports=supports)
