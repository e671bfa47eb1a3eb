"""Launches columns_int8.cu: the columns of quantized products as int8, in the records that
int8_columns.cuh describes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gguflow.engine.graph import DType

from .columns import Product
from .launch import Kernel, Launch, ceil_div, pack, places_of

CHUNK, BLOCK, _GROUP, _BLOCKS = 256, 32, 8, 8  # as in int8_columns.cuh
# The types of int8_weights.cuh, and `kSumsOf` them.
_SUMS = {
    "q4_0": 0, "q4_1": 1, "q5_0": 0, "q5_1": 1, "q8_0": 0,
    "q2_K": 2, "q3_K": 0, "q4_K": 1, "q5_K": 1, "q6_K": 0,
}  # fmt: skip
_MOST_HALF = 256  # of a head's dimensions, for which there is `room`
_NO_ROPE = bytes(40)


def known(t: DType) -> bool:
    """Whether int8_weights.cuh reads weights of this type."""
    return t.name in _SUMS


def sums_of(t: DType) -> int:
    """How many sums of a block of 32 elements of a column the weights' offsets need."""
    return _SUMS[t.name]


def record_bytes(sums: int) -> int:
    """Of a chunk and eight columns."""
    return _BLOCKS * BLOCK * _GROUP + (1 + sums) * _BLOCKS * _GROUP * 4


@dataclass(frozen=True)
class Records:
    """Addresses in scratch memory, from its start on."""

    x: int
    squares: int
    turns: int
    end: int
    groups: int
    sums: int


def _places(m: int, k: int, sums: int, norm: bool, half: int, first: int = 0) -> list[int]:
    """Of records, squares and turns of m columns of k elements, and where they end."""
    groups, blocks = ceil_div(m, _GROUP), k // BLOCK
    squares = 4 * blocks * groups * _GROUP if norm else 0
    return places_of((k // CHUNK * groups * record_bytes(sums), squares, 8 * m * half), 256, first)


def records(p: Product, sums: int, scratch: int = 0) -> Records:
    """Where the records with so many sums of all columns of a product lie."""
    half = p.heads.head_dim // 2 if p.heads else 0
    x, squares, turns, end = _places(p.m, p.k, sums, p.norm is not None, half, scratch)
    return Records(x, squares, turns, end, ceil_div(p.m, _GROUP), sums)


def room(m: int, k: int) -> int:
    """Bytes that records of m columns of k elements take, whatever the product is."""
    return _places(m, k, max(_SUMS.values()), True, _MOST_HALF)[-1]


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
