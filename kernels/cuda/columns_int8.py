"""Launches columns_int8.cu: the columns of quantized products as int8, in the records that
int8_columns.cuh describes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gguflow.engine.graph import DType

from .columns import Product
from .launch import Kernel, Launch, ceil_div, pack

CHUNK, _GROUP, _BLOCKS = 256, 8, 8  # as in int8_columns.cuh
# The types of int8_weights.cuh, and `kSumsOf` them.
_SUMS = {
    "q4_0": 0, "q4_1": 1, "q5_0": 0, "q5_1": 1, "q8_0": 0,
    "q2_K": 2, "q3_K": 0, "q4_K": 1, "q5_K": 1, "q6_K": 0,
}  # fmt: skip
MOST_SUMS = max(_SUMS.values())
_NO_ROPE = bytes(40)


def known(t: DType) -> bool:
    """Whether int8_weights.cuh reads weights of this type."""
    return t.name in _SUMS


def sums_of(t: DType) -> int:
    """How many sums of a block of 32 elements of a column the weights' offsets need."""
    return _SUMS[t.name]


def record_bytes(sums: int) -> int:
    """Of a chunk and eight columns."""
    return _BLOCKS * 32 * _GROUP + (1 + sums) * _BLOCKS * _GROUP * 4


@dataclass(frozen=True)
class Records:
    """Addresses in scratch memory, from its start on."""

    x: int
    squares: int
    turns: int
    end: int
    groups: int
    sums: int


def records(p: Product, sums: int, scratch: int = 0) -> Records:
    """Where the records with so many sums of all columns of a product lie."""
    groups, chunks = ceil_div(p.m, _GROUP), p.k // CHUNK
    half = p.heads.head_dim // 2 if p.heads else 0
    at = [scratch]
    squares = 4 * chunks * _BLOCKS * groups * _GROUP if p.norm else 0
    for nbytes in (chunks * groups * record_bytes(sums), squares, 8 * p.m * half):
        at.append(at[-1] + ceil_div(nbytes, 256) * 256)
    return Records(at[0], at[1], at[2], at[3], groups, sums)


def records_launch(p: Product, at: Records) -> Launch:
    """The rows of x, of a multiple of 256 elements, times the norm's weights if there is a norm."""
    heads = p.heads
    half = heads.head_dim // 2 if heads else 0
    numbers = struct.pack(
        "@6P", p.norm.address if p.norm else 0, at.x, at.squares if p.norm else 0,
        heads.pos.address if heads else 0, heads.factors.address if heads and heads.factors else 0,
        at.turns if heads else 0,
    ) + (heads.rope if heads else _NO_ROPE)  # fmt: skip
    numbers += struct.pack("@3i", p.m, at.groups, half) + bytes(4)
    kernel = Kernel("columns_int8.cu", f"int8_columns<{at.sums}>")
    grid = (p.k // CHUNK * at.groups + (p.m if heads else 0), 1, 1)
    return Launch(
        kernel, grid, (32 * _GROUP, 1, 1), pack(p.x, numbers), dependent=True, leaves=p.value
    )
