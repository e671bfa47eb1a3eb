"""Launches of sampling, of a step's end, and of inputs and outputs, without a GPU."""

from __future__ import annotations

import struct

import pytest
from kernel_list import DEVICE, launches_of

from gguflow.engine.graph import F32, I32, I64, Graph
from gguflow.kernels.cuda.advance import advance
from gguflow.kernels.cuda.launch import Launch, scratch_bytes
from gguflow.kernels.cuda.mirror import BUFFERS, mirror


@pytest.mark.parametrize("n", [1, 96, 1024, 1025, 32_003, 128_256, 1_000_001])
def test_a_block_scans_1024_logits(n: int) -> None:
    g = Graph()
    node = g.op("sample", g.input("l", F32, (1, n)), g.input("s", F32, (8,)),
                g.input("r", I64, (2,)), g.input("h", I32, (256,)))  # fmt: skip
    scan, draw = (x for x in launches_of(node) if isinstance(x, Launch))
    blocks = -(-n // 1024)
    assert scan.grid == draw.grid == (blocks, 1, 1)
    assert scan.args == draw.args and scan.dependent and draw.dependent
    # After five tensors of 72 bytes: runs of keys, sorted keys, sums, counts, blocks.
    runs, keys, sums, counts, number = struct.unpack_from("@4Pq", scan.args, 5 * 72)
    assert (keys - runs, sums - keys, number) == (blocks * 1024 * 8, n * 8, blocks)
    assert counts >= sums + 4 * n and counts % 16 == 0
    assert counts + 8 <= runs + scratch_bytes(node, DEVICE)


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
    launch = advance(1, 2, 3, 4, 5, 256, 6, 64)
    assert struct.unpack_from("@6P2q", launch.args) == (1, 2, 3, 4, 5, 6, 256, 64)
    assert launch.dependent and len(launch.args) % 16 == 0
