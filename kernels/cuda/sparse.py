"""What the ops over active neurons share: arguments, token groups, the list in scratch memory.

The kernels take up to `FEW` tokens at a time and read the rows that any of them wants.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .launch import Kernel, Launch, Operand, ceil_div
from .mul_mat_vec import columns_for

FEW = 8  # tokens of a group
PADDING = 1024  # entries past the end of the list that may be read, not used
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
class List:
    """The list of active rows in scratch memory, for up to `FEW` tokens at a time."""

    address: int
    n_rows: int
    m: int

    @property
    def columns(self) -> int:
        """Activations an entry has."""
        return columns_for(min(self.m, FEW))

    def _offsets(self) -> tuple[int, int, int, int]:
        entries = self.n_rows + PADDING
        sizes = 4, 4 * entries, 4 * self.columns * entries, 4 * ceil_div(self.n_rows, 32)
        at = [0]
        for nbytes in sizes:
            at.append(at[-1] + ceil_div(nbytes, 256) * 256)
        return at[1], at[2], at[3], at[4]

    @property
    def count(self) -> int:
        return self.address

    @property
    def rows(self) -> int:
        return self.address + self._offsets()[0]

    @property
    def h(self) -> int:
        return self.address + self._offsets()[1]

    @property
    def marks(self) -> int:
        return self.address + self._offsets()[2]

    @property
    def nbytes(self) -> int:
        return self._offsets()[3]


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


def list_launch(on: Neurons, h: Operand, to: List) -> Launch:
    """The list of active rows with their activations in h [m, n_ff]."""
    args = on.pack() + struct.pack(
        "@Pq3Pi4x", h.address, h.nb[1] // 4, to.count, to.rows, to.h, columns_for(on.m)
    )
    kernel = Kernel(_SOURCE, "list_rows")
    return Launch(kernel, (1, 1, 1), (1024, 1, 1), args, 4 * on.words, dependent=True)


def zero_launch(dst: Operand, sm_count: int) -> Launch:
    """dst, which is dense, becomes zero."""
    args = struct.pack("@Pq", dst.address, dst.size)
    grid = (max(1, min(8 * sm_count, ceil_div(dst.size, 256))), 1, 1)
    return Launch(Kernel(_SOURCE, "zero"), grid, (256, 1, 1), args, dependent=True)
