"""How rows of 16-bit weights are divided, so that all kernels sum them in the order of
float_columns.cuh."""

from __future__ import annotations

from .launch import ceil_div

PARTS = 16  # of a slice
ROUNDS = 4  # times that a slice's blocks go round its parts, at most
_SLICE = 4096  # elements of a slice, at most


def slices_of(k: int) -> int:
    """Slices of a row of k elements."""
    return ceil_div(k, _SLICE)


def bounds_of(k: int) -> list[int]:
    """Where its slices begin, and where the last one ends, in blocks of 32 elements."""
    units, slices = ceil_div(k, 256), slices_of(k)
    return [min(units * i // slices * 8, k // 32) for i in range(slices + 1)]


def most_blocks_of(k: int) -> int:
    """Blocks that a slice has room for."""
    return 8 * ceil_div(ceil_div(k, 256), slices_of(k))


def blocks_of(k: int) -> int:
    """Neighbouring blocks that a part takes at a time: 1 or 2."""
    return ceil_div(most_blocks_of(k), PARTS * ROUNDS)
