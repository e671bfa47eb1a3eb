"""Quantized weights as fragments (fragments.cuh): which types have that form, what it takes, and
the launch of fragments.cu that makes it."""

from __future__ import annotations

import struct

from gguflow.engine.graph import DType

from .launch import CompactForm, Kernel, Launch, Operand, ceil_div, cpp_type

EIGHT, UNIT = 8, 256  # rows of a unit, and elements of each
_THREADS, _MOST_BLOCKS = 256, 1 << 16
# Bytes of a unit's row: codes, and scales and offsets as halves.
_ROW_BYTES = {
    "q4_0": 144, "q4_1": 160, "q4_K": 160, "q5_0": 176, "q5_1": 192, "q5_K": 192, "q6_K": 228,
    "q8_0": 272,
}  # fmt: skip


def has_fragments(t: DType) -> bool:
    return t.name in _ROW_BYTES


def fragment_row_bytes(t: DType, k: int) -> int:
    """Of k elements, whole units: what a row takes of those that it lies among."""
    return k // UNIT * _ROW_BYTES[t.name]


def fragments_launch(w: Operand, to: CompactForm, too_large: int) -> Launch:
    """Makes fragments of w. too_large: address of an i32 that becomes 1 where a scale is too large
    for that form: with which values reach 2, or differ by 4 or so."""
    k, rows = w.ne[:2]
    numbers = w.address, to.address, too_large, w.nb[1], rows, k // UNIT
    kernel = Kernel("fragments.cu", f"make_fragments<{cpp_type(w.dtype)}>")
    warps = rows // EIGHT * (k // UNIT)
    grid = min(ceil_div(32 * warps, _THREADS), _MOST_BLOCKS), 1, 1
    return Launch(kernel, grid, (_THREADS, 1, 1), struct.pack("@3P3q", *numbers))
