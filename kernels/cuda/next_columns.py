"""What an op leaves of its results for the product of a few columns behind it: the records that
columns_int8.cu would make of them (next_columns.cuh)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .columns import Product, turns_by
from .columns_int8 import CHUNK, MOST_SUMS, Records, record_bytes
from .launch import ceil_div

_GROUP, _BLOCK = 8, 32  # as in int8_columns.cuh
_MOST_HALF = 256  # of a head's dimensions, for which there is room


@dataclass(frozen=True)
class Next:
    """at: where the records of the columns of `product` are left."""

    product: Product
    at: Records


def room(m: int, k: int) -> int:
    """Bytes that records of m columns of k elements take, whatever the weights are."""
    groups = ceil_div(m, _GROUP)
    sizes = (
        k // CHUNK * groups * record_bytes(MOST_SUMS),
        4 * k // _BLOCK * groups * _GROUP,
        8 * m * _MOST_HALF,
    )
    return sum(ceil_div(n, 256) * 256 for n in sizes)


def place(at: Records | None) -> bytes:
    """`RecordsPlace` of next_columns.cuh."""
    return struct.pack("@P2i", *((0, 0, 0) if at is None else (at.x, at.groups, at.sums)))


def arguments(then: Next | None) -> bytes:
    """`NextColumns` of next_columns.cuh."""
    if then is None:
        return place(None) + bytes(88)
    p, at = then.product, then.at
    return (
        place(at)
        + struct.pack("@3P", p.norm.address if p.norm else 0, at.squares if p.norm else 0,
                      at.turns if p.heads else 0)
        + turns_by(p)
        + struct.pack("@2i", p.k // _BLOCK, p.heads.head_dim // 2 if p.heads else 0)
    )  # fmt: skip
