"""Launches sample.cu, and sample_many.cu where there are many rows."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gguflow.engine.graph import Tensor

from .launch import MAX_GRID_YZ, Call, DeviceInfo, Kernel, Launch, Operand, ceil_div, pack

OPS = ("sample",)
SCAN = 1024  # logits of a run, kScan of sample.cuh
SCAN_BLOCK = 512
BLOCK = 1024
KEY = 8  # bytes
FEW = 8  # rows that get a block for every run
BLOCKS = 8  # of each of more rows
STRIP, STRIP_BLOCK = 8192, 128  # logits and threads of a block of sample_groups
ROOM = 96 << 20  # bytes of scratch memory that rows share, if a row does not need more


@dataclass(frozen=True)
class Scratch:
    """Bytes from the start of the scratch memory, for rows of n logits of which `rows` are done at
    a time: runs of keys come first."""

    n: int
    rows: int
    of_all: int  # rows

    @classmethod
    def of(cls, n: int, rows: int) -> Scratch:
        a_row = (ceil_div(n, SCAN) * SCAN + n) * KEY + 4 * n
        return cls(n, rows if rows <= FEW else min(rows, max(1, ROOM // a_row)), rows)

    @property
    def blocks(self) -> int:
        return ceil_div(self.n, SCAN)

    @property
    def strips(self) -> int:
        return ceil_div(self.n, STRIP)

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
    def largest(self) -> int:
        return self.counts + ceil_div(8 * self.rows, 16) * 16

    @property
    def end(self) -> int:
        many = self.of_all > FEW
        return self.largest + many * self.of_all * self.strips * STRIP_BLOCK * KEY


def supports(node: Tensor) -> bool:
    return node.shape[0] <= MAX_GRID_YZ


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    rows, n = node.live_srcs()[0].shape
    return Scratch.of(n, rows).end


def launches(call: Call) -> list[Launch]:
    n, rows = call.src(0).ne[:2]
    scratch, at = Scratch.of(n, rows), call.scratch
    where = struct.pack(
        "@4Pq", at, at + scratch.sorted, at + scratch.sums, at + scratch.counts, scratch.blocks
    )

    def arguments(begin: int, m: int) -> bytes:
        """For m rows."""

        def of(o: Operand, axis: int) -> Operand:
            ne = tuple(m if i == axis else extent for i, extent in enumerate(o.ne))
            return o.shift(begin * o.nb[axis], ne)

        return pack(of(call.dst, 0), *(of(call.src(i), 1) for i in range(4)), where)

    made = []
    if rows > FEW:
        groups = struct.pack("@Pq", at + scratch.largest, scratch.strips)
        args = pack(arguments(0, rows), groups)
        for entry, grid, block in (
            ("sample_groups", (scratch.strips, rows, 1), STRIP_BLOCK),
            ("sample_many", (rows, 1, 1), BLOCK),
        ):
            kernel = Kernel("sample_many.cu", entry)
            made.append(Launch(kernel, grid, (block, 1, 1), args, dependent=True))
    every = "true" if rows <= FEW else "false"
    blocks = scratch.blocks if rows <= FEW else min(BLOCKS, scratch.blocks)
    for begin in range(0, rows, scratch.rows):
        m = min(scratch.rows, rows - begin)
        args = arguments(begin, m)
        for entry, block in ((f"sample_scan<{every}>", SCAN_BLOCK), (f"sample<{every}>", BLOCK)):
            kernel = Kernel("sample.cu", entry)
            made.append(Launch(kernel, (blocks, m, 1), (block, 1, 1), args, dependent=True))
    return made
