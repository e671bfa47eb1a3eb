"""Launches sample.cu, or sample_many.cu and sample_sorted.cu where there are many rows."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gguflow.engine.graph import Tensor

from .launch import MAX_GRID_YZ, Call, DeviceInfo, Kernel, Launch, ceil_div, pack, register

OPS = ("sample",)
SCAN = 1024  # logits of a run, kScan of sample.cuh
SCAN_BLOCK = 512
BLOCK = 1024
KEY = 8  # bytes
FEW = 8  # rows that get a block for every run
STRIP, STRIP_BLOCK = 8192, 128  # logits and threads of a block of sample_groups
ROOM = 224 << 20  # bytes of scratch memory for rows that are sorted, if one does not need more


@dataclass(frozen=True)
class Scratch:
    """Bytes from the start of the scratch memory, for rows of n logits. Of few rows, runs of keys
    come first; of many, what is sorted."""

    n: int
    rows: int

    @property
    def few(self) -> bool:
        return self.rows <= FEW

    @property
    def blocks(self) -> int:
        return ceil_div(self.n, SCAN)

    @property
    def sorted(self) -> int:
        return self.rows * self.blocks * SCAN * KEY

    @property
    def sums(self) -> int:
        return self.sorted + self.rows * self.n * KEY

    @property
    def counts(self) -> int:
        return ceil_div(self.sums + 4 * self.rows * self.n, 16) * 16

    @property
    def at_a_time(self) -> int:
        """Of many rows, those sorted side by side, in as few turns as there is room for."""
        turns = ceil_div(self.rows, max(1, ROOM // (12 * self.n)))
        return ceil_div(self.rows, turns)

    @property
    def strips(self) -> int:
        return ceil_div(self.n, STRIP)

    @property
    def largest(self) -> int:
        return ceil_div(12 * self.n * self.at_a_time, 16) * 16

    @property
    def end(self) -> int:
        if self.few:
            return self.counts + 8 * self.rows
        return self.largest + self.rows * self.strips * STRIP_BLOCK * KEY


def supports(node: Tensor) -> bool:
    return node.shape[0] <= MAX_GRID_YZ


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    rows, n = node.live_srcs()[0].shape
    return Scratch(n, rows).end


def launches(call: Call) -> list[Launch]:
    n, rows = call.src(0).ne[:2]
    scratch, at = Scratch(n, rows), call.scratch
    # Of many rows there are no runs.
    places = (scratch.sorted, scratch.sums, scratch.counts) if scratch.few else (0, 0, 0)
    where = struct.pack("@4Pq", *(at + place for place in (0, *places)), scratch.blocks)
    args = pack(call.dst, *(call.src(i) for i in range(4)), where)

    def launch(source: str, entry: str, grid: tuple[int, int], block: int, args: bytes) -> Launch:
        kernel = Kernel(source, entry)
        return Launch(kernel, (*grid, 1), (block, 1, 1), args, dependent=True)

    if scratch.few:
        grid = (scratch.blocks, rows)
        return [
            launch("sample.cu", "sample_scan", grid, SCAN_BLOCK, args),
            launch("sample.cu", "sample", grid, BLOCK, args),
        ]
    groups = pack(args, struct.pack("@Pq", at + scratch.largest, scratch.strips))
    room = pack(args, struct.pack("@P", at))
    return [
        launch("sample_many.cu", "sample_groups", (scratch.strips, rows), STRIP_BLOCK, groups),
        launch("sample_many.cu", "sample_many", (rows, 1), BLOCK, groups),
        launch("sample_sorted.cu", "sample_sorted", (scratch.at_a_time, 1), BLOCK, room),
    ]


register(OPS, launches, supports=supports, scratch_bytes=scratch_bytes)
