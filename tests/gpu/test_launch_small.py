"""Launches of sampling, of a step's end, and of inputs and outputs, without a GPU."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from kernel_list import DEVICE, launches_of

from gguflow.engine.graph import F32, I32, I64, Graph, Tensor
from gguflow.kernels.cuda.accept import RoundPlaces, accept
from gguflow.kernels.cuda.advance import CacheRows, StepInputs, advance
from gguflow.kernels.cuda.draft import draft_first, draft_next
from gguflow.kernels.cuda.launch import Launch, scratch_bytes
from gguflow.kernels.cuda.mirror import BUFFERS, mirror
from gguflow.kernels.cuda.sample import ROOM


def sampling(rows: int, n: int) -> tuple[Tensor, list[Launch]]:
    g = Graph()
    node = g.op("sample", g.input("l", F32, (rows, n)), g.input("s", F32, (rows, 8)),
                g.input("r", I64, (rows, 2)), g.input("h", I32, (rows, 256)))  # fmt: skip
    return node, [x for x in launches_of(node) if isinstance(x, Launch)]


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("n", [1, 96, 1024, 1025, 32_003, 128_256, 1_000_001])
def test_a_block_scans_1024_logits_of_few_rows(rows: int, n: int) -> None:
    node, (scan, draw) = sampling(rows, n)
    blocks = -(-n // 1024)
    assert scan.grid == draw.grid == (blocks, rows, 1)
    assert scan.args == draw.args and scan.dependent and draw.dependent
    # After five tensors of 72 bytes: runs of keys, sorted keys, sums, counts, blocks.
    runs, keys, sums, counts, number = struct.unpack_from("@4Pq", scan.args, 5 * 72)
    assert (keys - runs, sums - keys) == (rows * blocks * 1024 * 8, rows * n * 8)
    assert number == blocks
    assert counts >= sums + 4 * n * rows and counts % 16 == 0
    assert counts + 8 * rows <= runs + scratch_bytes(node, DEVICE)


@pytest.mark.parametrize("rows, n", [(9, 1), (9, 8193), (128, 128_256), (300, 256_000)])
def test_many_rows_are_read_once(rows: int, n: int) -> None:
    node, (groups, many, ordered) = sampling(rows, n)
    strips = -(-n // 8192)
    assert groups.grid == (strips, rows, 1) and many.grid == (rows, 1, 1)
    assert groups.args == many.args
    # After five tensors of 72 bytes: runs of keys and what else few rows need, then what is added.
    runs, *_, largest, number = struct.unpack_from("@4PqPq", groups.args, 5 * 72)
    assert number == strips
    assert largest + rows * strips * 128 * 8 <= runs + scratch_bytes(node, DEVICE)
    # Rows that want all of their logits in order are sorted by a block each, in equal turns.
    at_a_time, room = ordered.grid[0], struct.unpack_from("@4PqP", ordered.args, 5 * 72)[-1]
    assert ordered.grid[1:] == (1, 1) and ordered.args[: 5 * 72] == groups.args[: 5 * 72]
    assert room == runs and room + 3 * 4 * n * at_a_time <= largest
    turns = -(-rows // at_a_time)
    assert turns * at_a_time - rows < turns
    assert at_a_time == 1 or 12 * n * at_a_time <= ROOM


def test_every_buffer_is_brought_once() -> None:
    spans = [(1 << 20 | i << 12, 1 << 30 | i << 12, 16 * (i + 1)) for i in range(2 * BUFFERS + 1)]
    made = list(mirror(spans))
    assert [m.grid[0] for m in made] == [BUFFERS, BUFFERS, 1]
    found = []
    for m in made:
        numbers = struct.unpack_from(f"@{2 * BUFFERS}P{BUFFERS}q", m.args)
        found += list(zip(*(numbers[i * BUFFERS : (i + 1) * BUFFERS] for i in range(3)),
                          strict=True))[: m.grid[0]]  # fmt: skip
    assert found == spans
    assert [m.block[0] for m in mirror([(0, 0, 16), (0, 0, 1024 * 16 - 16), (0, 0, 640)])] == [1024]
    assert next(mirror([(0, 0, 16 * 33)])).block == (64, 1, 1)
    assert list(mirror([])) == []


def test_the_arguments_of_advance_are_in_order() -> None:
    groups = [CacheRows(21, 31, 41), CacheRows(22, 32, 42)]
    at = StepInputs(5, 1, 2, 3, 4, 6, 7, 256, 9, groups)
    launch = advance(at, 10, 11, 64)
    assert launch.grid == (5, 1, 1) and launch.dependent and len(launch.args) % 16 == 0
    pointers = (1, 2, 3, 4, 6, 7, 10, 11, 21, 22, *[0] * 6, 31, 32, *[0] * 6)
    numbers = (41, 42, *[0] * 6, 2, 9, 256, 64)
    assert struct.unpack_from("@24P12i", launch.args) == (*pointers, *numbers)
    with pytest.raises(ValueError, match="9 groups"):
        advance(replace(at, groups=groups * 4 + groups[:1]), 10, 11, 64)


def test_the_arguments_of_accept_are_in_order() -> None:
    groups = [CacheRows(21, 31, 41), CacheRows(22, 32, 42)]
    at = StepInputs(50, 1, 2, 3, 4, 6, 7, 256, 9, groups)
    launch = accept(at, RoundPlaces(8, 9, 12, 1 << 40), 10, 11, 64, begins=True)
    assert launch.grid == (9, 1, 1) and launch.dependent
    pointers = (1, 2, 3, 4, 6, 7, 8, 9, 12, 10, 11, 21, 22, *[0] * 6, 31, 32, *[0] * 6)
    numbers = (41, 42, *[0] * 6, 2, 9, 256, 64, 50, 1, 0)
    assert struct.unpack_from("@27P15iq", launch.args) == (*pointers, *numbers, 1 << 40)
    with pytest.raises(ValueError, match="9 groups"):
        accept(replace(at, groups=groups * 4 + groups[:1]), RoundPlaces(0, 0, 0, 1), 10, 11, 64)


@pytest.mark.parametrize("prepared", [0, 12])
def test_the_arguments_of_a_drafts_steps_are_in_order(prepared: int) -> None:
    """What the round checks is only written where nothing is prepared."""
    groups = [CacheRows(21, 31, 41), CacheRows(22, 32, 42)]
    to = StepInputs(5, 1, 2, 3, 4, 6, 7, 256, 9, groups)
    checks = StepInputs(50, 51, 52, 53, 54, 55, 56, 256, 9, [])
    keep = RoundPlaces(8, 10, prepared, 1 << 40, True)
    checked = (0, 0) if prepared else (52, 56)
    for launch, token, stride in (
        (draft_first(to, checks, keep), 0, 0),
        (draft_next(57, 2, to, checks, keep), 57, 2),
    ):
        assert launch.grid == (9, 1, 1) and launch.dependent
        mine = (token, 2, 3, 4, 6, 7, 8, 10, 55, *checked)
        pointers = (*mine, 21, 22, *[0] * 6, 31, 32, *[0] * 6)
        numbers = (41, 42, *[0] * 6, 2, 9, 256, stride)
        assert struct.unpack_from("@27P12iq", launch.args) == (*pointers, *numbers, 1 << 40)
    with pytest.raises(ValueError, match="9 groups"):
        draft_first(replace(to, groups=groups * 4 + groups[:1]), checks, keep)
