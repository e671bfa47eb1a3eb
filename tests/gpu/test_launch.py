"""Launches are data: their grids, collapsed shapes and argument bytes, without a GPU."""

from __future__ import annotations

import struct
from itertools import permutations
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_list import launches_of

from gguflow.engine.graph import F32, Graph, Tensor, dtype_by_name
from gguflow.kernels.cuda.collapse import CACHED_BYTES, collapse
from gguflow.kernels.cuda.launch import (
    MAX_GRID_YZ,
    DeviceInfo,
    Dim3,
    Launch,
    Operand,
    fast_div,
    scratch_bytes,
)


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


def test_a_repeated_dimension_becomes_two_where_there_is_room() -> None:
    assert collapsed((8, 64), (2, 16)) == ((16, 4, 2, 4), (16, 4, 2, 4))
    assert collapsed((4, 6, 64), (1, 6, 16)) == ((16, 4, 6, 4), (16, 4, 6, 4))
    assert collapsed((4, 6, 4, 64), (2, 6, 1, 16)) == ((64, 4, 6, 4), (16, 4, 6, 2))
    assert binary((8, 64), (2, 16)).kernel.entry.endswith("4, false>")  # packs, nothing modulo


def test_a_large_repeated_operand_is_read_piece_by_piece() -> None:
    rows = CACHED_BYTES // 4 // 4096 + 1
    assert collapsed((3, rows, 4096), (rows, 4096)) == ((4096, 3, rows, 1),) * 2
    assert collapsed((3, rows - 1, 4096), (rows - 1, 4096))[0] == (4096 * (rows - 1), 3, 1, 1)


def _addresses(*operands: Operand) -> np.ndarray:
    """Byte offsets of the elements that meet, a row each, sorted."""
    first, last = operands[0], operands[-1]
    index = np.stack(np.meshgrid(*map(np.arange, first.ne), indexing="ij"), -1).reshape(-1, 4)
    columns = [index @ o.nb for o in operands[:-1]]
    columns.append((index % np.array(last.ne)) @ np.array(last.nb))
    return np.array(sorted(zip(*(c.tolist() for c in columns), strict=True)))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_collapsing_keeps_which_elements_meet(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=4, max_size=4))
    parts = [data.draw(st.sampled_from([m for m in range(1, n + 1) if n % m == 0])) for n in shape]
    operands = []
    for ne in (shape, shape, parts):
        order, nb, step = data.draw(st.permutations(range(4))), [0] * 4, 4
        for i in order:
            nb[i], step = step, step * (ne[i] + data.draw(st.integers(0, 1)))
        operands.append(Operand(0, tuple(ne), tuple(nb), F32))
    fewer = collapse(*operands)
    assert np.array_equal(_addresses(*operands), _addresses(*fewer))
    assert sum(n > 1 for n in fewer[0].ne) <= 4


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
    assert odd.kernel.entry == "bin_bcast_cycle<false, add, f32, f32, 4>"
    assert odd.grid[0] * odd.block[0] * 4 >= 7 * 301
    assert binary((7, 301), (7, 1)).kernel.entry == "bin_bcast_flat<false, add, f32, f32, 4>"


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
    assert launch.grid[0] * launch.block[0] >= prod(a) // 4
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


def of(g: Graph, op: str, x: Tensor, **params: object) -> list[Launch]:
    return [k for k in launches_of(g.op(op, x, **params)) if isinstance(k, Launch)]


def test_copies_take_the_widest_words_and_tiles() -> None:
    g = Graph()
    x = g.input("x", F32, (6, 40, 64))
    entry = {
        axes: of(g, "cont", g.permute(x, axes))[0].kernel.entry for axes in permutations(range(3))
    }
    assert entry[0, 1, 2] == "copy_dense<Pack<u64, 2>>"
    assert entry[1, 0, 2] == "copy_strided<false, false, Pack<u64, 2>>"
    assert entry[0, 2, 1] == entry[2, 0, 1] == "copy_transposed<u32>"
    assert entry[1, 2, 0] == entry[2, 1, 0] == "copy_strided<false, false, u32>"  # rows of six
    (tiles,) = of(g, "cont", g.permute(x, (0, 2, 1)))
    assert tiles.grid == (1 * 1 * 6, 1, 1)
    odd = g.input("odd", F32, (6, 40, 63))
    assert (
        of(g, "cont", g.permute(odd, (1, 0, 2)))[0].kernel.entry
        == "copy_strided<false, false, u32>"
    )


@pytest.mark.parametrize("n", [1, 8, 9, 128, 129, 8192, 40_000, 131_072, 131_073, 1 << 20])
@pytest.mark.parametrize("axis", [-1, -2])
def test_how_a_result_is_reduced_depends_on_the_length_alone(n: int, axis: int) -> None:
    def ways(others: int) -> list[tuple[str, Dim3, int]]:
        shape = (others, n) if axis == -1 else (n, others)
        g = Graph()
        found = of(g, "sum", g.input("x", F32, shape), axis=axis)
        # Four elements are read at once or not, but summed in the same order.
        entries = [k.kernel.entry.replace(", true>", ", false>") for k in found]
        return [(e, k.block, k.grid[1]) for e, k in zip(entries, found, strict=True)]

    if n > 1:
        assert ways(1) == ways(2) == ways(700)
    assert len(ways(3)) == 1 + (n > (131_072 if axis == -1 else 8192))


def test_partial_results_have_room() -> None:
    g = Graph()
    x = g.input("x", F32, (3, 1 << 20))
    assert scratch_bytes(g.op("argmax", x, axis=-1), DeviceInfo()) == 3 * 32 * 8
    assert scratch_bytes(g.op("sum", x, axis=-1), DeviceInfo()) == 3 * 32 * 4
    assert scratch_bytes(g.op("sum", x, axis=-2), DeviceInfo()) == 0
