"""Launches are data: their grids, collapsed shapes and argument bytes, without a GPU."""

from __future__ import annotations

import struct

import pytest
from kernel_list import launches_of

from gguflow.engine.graph import F32, Graph, dtype_by_name
from gguflow.kernels.cuda.bin_bcast import collapse
from gguflow.kernels.cuda.launch import MAX_GRID_YZ, Launch, Operand, fast_div


def binary(a: tuple[int, ...], b: tuple[int, ...], dtype: str = "f32") -> Launch:
    g = Graph()
    t = dtype_by_name(dtype)
    (launch,) = launches_of(g.add(g.input("a", t, a), g.input("b", t, b)))
    return launch


def collapsed(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    g = Graph()
    ta, tb = g.input("a", F32, a), g.input("b", F32, b)
    dst, _, rest = collapse(*(Operand.of(t, 1 << 20) for t in (ta, ta, tb)))
    return dst.ne, rest.ne


def test_dense_operands_become_one_run() -> None:
    assert collapsed((4, 3, 5, 8), (4, 3, 5, 8))[0] == (480, 1, 1, 1)
    assert binary((4, 3, 5, 8), (4, 3, 5, 8)).kernel.entry == "map_dense<4, add, f32, f32, f32>"
    assert binary((4, 3, 5, 8), (4, 3, 5, 8), "f16").kernel.entry.startswith("map_dense<8,")


def test_repeated_dimensions_are_merged_only_with_their_like() -> None:
    assert collapsed((4, 3, 5, 8), (1,)) == ((480, 1, 1, 1), (480, 1, 1, 1))
    assert collapsed((4, 3, 5, 8), (8,)) == ((8, 60, 1, 1), (8, 60, 1, 1))
    assert collapsed((4, 3, 5, 8), (5, 8)) == ((40, 12, 1, 1), (40, 12, 1, 1))
    assert collapsed((4, 6, 3, 8), (2, 6, 1, 8)) == ((8, 3, 6, 4), (8, 3, 6, 2))


def test_the_grid_covers_half_a_row_as_threads_loop() -> None:
    launch = binary((7, 300), (1, 300))
    assert launch.kernel.entry == "bin_bcast<add, f32, f32, 4, false>"
    assert (launch.grid, launch.block) == ((1, 3, 1), (37, 3, 1))
    column = binary((7, 300), (7, 1))
    assert column.kernel.entry == "bin_bcast<add, f32, f32, 4, true>"


def test_short_and_odd_rows_are_shared_out_as_one_line() -> None:
    short = binary((4, 6, 3, 8), (2, 3, 1, 4 * 2))
    assert short.kernel.entry == "bin_bcast_unravel<false, add, f32, f32, 4, false>"
    odd = binary((7, 301), (1, 301))
    assert odd.kernel.entry == "bin_bcast_flat<false, add, f32, f32, 4>"
    assert odd.grid[0] * odd.block[0] * 4 >= 7 * 301


@pytest.mark.parametrize(
    "a, b",
    [
        ((100_000, 1024), (1024,)),  # too many blocks in y
        ((2, 70_000, 2, 1024), (1, 70_000, 1, 1024)),  # in z
    ],
)
def test_grids_beyond_the_limit_are_unravelled(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    launch = binary(a, b)
    assert launch.kernel.entry.startswith("bin_bcast_unravel<false,")
    assert launch.grid[1:] == (1, 1)
    n = 1
    for k in a:
        n *= k
    assert launch.grid[0] * launch.block[0] >= n // 4
    assert launch.grid[0] < 1 << 31 and max(launch.grid[1:]) <= MAX_GRID_YZ


@pytest.mark.parametrize("d", [1, 2, 3, 5, 7, 32, 33, 127, 641, 65_535, 65_537, (1 << 31) - 1])
def test_fast_division_is_exact(d: int) -> None:
    multiplier, shift, divisor = struct.unpack("@3I", fast_div(d))
    assert divisor == d
    numbers = {0, 1, (1 << 31) - 1, *(k * d + o for k in (1, 2, 99, ((1 << 31) - 2) // d)
                                      for o in (-1, 0, 1))}  # fmt: skip
    for n in numbers:
        if 0 <= n < 1 << 31:
            high = (n * multiplier) >> 32
            assert high + n < 1 << 32
            assert (high + n) >> shift == n // d
