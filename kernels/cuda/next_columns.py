"""What an op leaves of its results for the product of a few columns behind it: the records that
columns_int8.cu would make of them (next_columns.cuh)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .columns import Product, turns_by
from .columns_int8 import BLOCK, Records


@dataclass(frozen=True)
class Next:
    """at: where the records of the columns of `product` are left."""

    product: Product
    at: Records


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
        + struct.pack("@2i", p.k // BLOCK, p.heads.head_dim // 2 if p.heads else 0)
    )  # fmt: skip
