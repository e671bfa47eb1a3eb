"""What the ops over active neurons share: arguments, token groups, scratch memory.

The kernels take up to `FEW` tokens at a time and read the rows that any of them wants.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .launch import Kernel, Launch, Operand, ceil_div
from .mul_mat_vec import FEW as FEW  # tokens of a group
from .mul_mat_vec import columns_for

# Tokens up to which rows of this type are read as they are wanted; beyond, dense products are
# faster. From bench/cuda_sparse.py.
SPARSE_TOKENS = {"f32": 6, "f16": 6, "bf16": 6, "q8_0": 12, "q4_0": 12, "q4_K": 12, "q6_K": 12}
_SOURCE = "sparse_list.cu"


@dataclass(frozen=True)
class Neurons:
    """`Neurons` of sparse.cuh: which rows are active. by_row: idx has an entry a row."""

    idx: Operand | None
    bucket: Operand | None
    gpu_idx: Operand | None
    threshold: float
    n_rows: int
    m: int
    by_row: bool = False
    marks: int = 0  # address of a bit a row, once they are made

    @property
    def words(self) -> int:
        return ceil_div(self.n_rows, 32)

    def tokens(self, first: int, m: int) -> Neurons:
        """The same of m tokens from `first` on."""
        idx = None if self.idx is None else self.idx.shift(first * self.idx.nb[1])
        return replace(self, idx=idx, m=m)

    def pack(self) -> bytes:
        def address(o: Operand | None) -> int:
            return 0 if o is None else o.address

        return struct.pack(
            "@4Pqf3i", address(self.idx), address(self.bucket), address(self.gpu_idx), self.marks,
            0 if self.idx is None else self.idx.nb[1] // 4, self.threshold, self.n_rows, self.m,
            self.by_row,
        )  # fmt: skip


@dataclass(frozen=True)
class Scratch:
    """Scratch memory of a group of tokens: [activations by place in the list][marks]."""

    address: int
    n_rows: int
    m: int

    @property
    def h(self) -> int:
        return self.address

    @property
    def marks(self) -> int:
        columns = columns_for(min(self.m, FEW))
        return self.address + ceil_div(4 * columns * self.n_rows, 256) * 256

    @property
    def end(self) -> int:
        return self.marks + ceil_div(4 * ceil_div(self.n_rows, 32), 256) * 256


def groups(m: int) -> Iterator[tuple[int, int]]:
    """(first token, tokens) of each group."""
    for first in range(0, m, FEW):
        yield first, min(FEW, m - first)


def marked(on: Neurons, at: int) -> tuple[list[Launch], Neurons]:
    """What marks the rows that any of several tokens wants, and the neurons with those marks at
    address `at`. One token's scores are read by the product itself."""
    if on.idx is None or on.m == 1:
        return [], on
    args = on.pack() + struct.pack("@P", at)
    grid = (ceil_div(on.n_rows, 256), 1, 1)
    launch = Launch(Kernel(_SOURCE, "mark_rows"), grid, (256, 1, 1), args, dependent=True)
    return [launch], replace(on, marks=at)


def pick_launch(on: Neurons, h: Operand, to: int) -> Launch:
    """h [m, n_ff] as [m, n_rows] at address `to`, zero where a token does not want a row."""
    args = on.pack() + struct.pack("@PqP", h.address, h.nb[1] // 4, to)
    grid = (on.m, max(1, min(64, ceil_div(on.n_rows, 256))), 1)
    return Launch(Kernel(_SOURCE, "pick_rows"), grid, (256, 1, 1), args)


def zero_launch(dst: Operand, sm_count: int) -> Launch:
    """dst, which is dense, becomes zero."""
    args = struct.pack("@Pq", dst.address, dst.size)
    grid = (max(1, min(8 * sm_count, ceil_div(dst.size, 256))), 1, 1)
    return Launch(Kernel(_SOURCE, "zero"), grid, (256, 1, 1), args, dependent=True)
