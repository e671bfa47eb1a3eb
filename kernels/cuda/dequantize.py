"""Launches dequantize.cu."""

from __future__ import annotations

import struct

from .launch import MAX_GRID_YZ, Kernel, Launch, Operand, ceil_div, cpp_type, pack

_THREADS, _ELEMENTS = 256, 8192  # as in dequantize.cu


def can_dequantize(w: Operand) -> bool:
    """Whether w is a quantized matrix whose rows follow each other, or begin at multiples of 16."""
    follow = w.nb[1] == w.dtype.row_bytes(w.ne[0]) or w.nb[1] % 16 == 0
    return w.dtype.block > 1 and w.nb[0] == w.dtype.nbytes and follow and w.ne[2:] == (1, 1)


def dequantize_launch(w: Operand, to: int, dtype: str) -> Launch:
    """The rows of w, one after the other, as `dtype` (f16 or bf16) at address `to`."""
    n, rows = w.ne[:2]
    if w.nb[1] == w.dtype.row_bytes(n):
        n, rows = n * rows, 1
    kernel = Kernel("dequantize.cu", f"dequantize<{cpp_type(w.dtype)}, {dtype}>")
    args = pack(struct.pack("@2P3q", to, w.address, n, rows, w.nb[1]))
    grid = ceil_div(n, _ELEMENTS), min(rows, MAX_GRID_YZ), 1
    return Launch(kernel, grid, (_THREADS, 1, 1), args)
