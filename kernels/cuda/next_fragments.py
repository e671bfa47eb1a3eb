"""What an op leaves of its results for the product of weights that lie as fragments behind it: the
columns that columns_round.cu would make of them, and how large they are (next_fragments.cuh)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .columns import Product, are_of_halves, row_step
from .launch import DeviceInfo, ceil_div, places_of

COLUMNS = (2, 4, 8, 16)  # that lie together
MOST = COLUMNS[-1]
BLOCK = 32  # elements of a piece where the op before is attention


@dataclass(frozen=True)
class Left:
    """x, largest: where the columns lie, so many together, and the largest of each of so many
    pieces of a column. end: of both. of_halves: how a lane's elements lie."""

    x: int
    largest: int
    end: int
    columns: int
    pieces: int
    of_halves: bool


def columns_of(m: int) -> int:
    """How many lie together where there are m."""
    return next(c for c in COLUMNS if c >= m)


def _places(m: int, k: int, pieces: int, begin: int) -> tuple[int, int, int]:
    columns = columns_of(m)
    x, largest, end = places_of((2 * columns * k, 4 * columns * pieces), 256, begin)
    return x, largest, end


def left_for(p: Product, pieces: int, begin: int) -> Left:
    """Where an op leaves the columns of a product, from `begin` on."""
    x, largest, end = _places(p.m, p.k, pieces, begin)
    return Left(x, largest, end, columns_of(p.m), pieces, are_of_halves(p))


def room(m: int, k: int, device: DeviceInfo) -> int:
    """Bytes that m columns of k elements take, whatever leaves them: attention in blocks, or a
    product's multiprocessors."""
    return _places(m, k, max(ceil_div(k, BLOCK), device.sm_count), 0)[-1]


def place(then: Left | None) -> bytes:
    """`FragmentsPlace` of next_fragments.cuh."""
    if then is None:
        return bytes(32)
    return struct.pack(
        "@2P3i4x", then.x, then.largest, then.columns, then.pieces, then.of_halves
    )  # fmt: skip


def given(p: Product, left: Left | None) -> bytes:
    """`GivenFragments` of next_fragments.cuh."""
    if left is None:
        return bytes(24)
    return struct.pack("@Pqi4x", left.largest, (row_step(p.x) or 0) // 4, left.pieces)
