"""Launches dequantize.cu."""

from __future__ import annotations

import struct

from .launch import Kernel, Launch, Operand, ceil_div, cpp_type

_THREADS, _ELEMENTS = 256, 8192  # as in dequantize.cu


def can_dequantize(w: Operand) -> bool:
    """Whether w is a quantized matrix without gaps between its blocks."""
    block = w.dtype.block
    row = w.ne[0] // block * w.dtype.nbytes
    return block > 1 and w.nb[1] == row and w.ne[2] == w.ne[3] == 1


def dequantize_launch(w: Operand, to: int, dtype: str) -> Launch:
    """The rows of w, one after the other, as `dtype` (f16 or bf16) at address `to`."""
    n = w.ne[0] * w.ne[1]
    kernel = Kernel("dequantize.cu", f"dequantize<{cpp_type(w.dtype)}, {dtype}>")
    args = struct.pack("@2Pq8x", to, w.address, n)
    return Launch(kernel, (ceil_div(n, _ELEMENTS), 1, 1), (_THREADS, 1, 1), args)
