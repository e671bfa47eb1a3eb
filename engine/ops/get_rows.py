"""get_rows: rows of a table, by index. The embedding lookup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, I32, Case, DType, Operand, OpSpec, Shape, Tensor
from ._common import FLOATS, GRID_QUANTS, QUANTS, TABLE_QUANTS, block_of, rows_dense


class GetRows(OpSpec):
    name = "get_rows"
    doc = "Row `ids[i]` of the table, dequantized. An id outside [0, n) gives a row of zeros."
    operands = ("table any float or quantized [n, d]", "ids i32 [m]")
    rows_of = 1
    across = (0,)
    looks_up = 1
    cost = "0 (1 an element for a quantized table)"

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        table, ids = srcs
        if len(table.shape) != 2 or table.dtype.is_integer or not rows_dense(table):
            raise self.fail("the table must be [n, d] of a float or quantized type, rows dense",
                            *srcs)  # fmt: skip
        if len(ids.shape) != 1 or ids.dtype is not I32 or not rows_dense(ids):
            raise self.fail("ids must be dense i32 [m]", *srcs)
        return F32, (ids.shape[0], table.shape[1])

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        table, ids = srcs
        known = (ids >= 0) & (ids < len(table))
        rows = np.zeros((len(ids), table.shape[1]), np.float32)
        rows[known] = table[ids[known]]
        return rows

    def flops(self, out: Tensor) -> int:
        table = out.srcs[0]
        return out.size if table is not None and table.dtype.is_quantized else 0

    def bytes(self, out: Tensor) -> int:
        table, ids = out.live_srcs()
        return out.nbytes + ids.nbytes + out.shape[0] * table.dtype.row_bytes(table.shape[1])

    def cases(self) -> Iterator[Case]:
        for t in FLOATS + QUANTS + TABLE_QUANTS + GRID_QUANTS:
            d = 3 * block_of(t) if block_of(t) > 1 else 31
            table = Operand((7, d), t, role="weight")
            yield Case((table, Operand((5,), "i32", [6, 0, 3, 3, 1])), note=t)
        ids = Operand((172,), "i32", lambda rng, shape: rng.integers(0, 172, shape))
        yield Case((Operand((172, 3), role="weight"), ids), note="many")
        yield Case((Operand((1, 1)), Operand((1,), "i32", [0])), note="one")
        yield Case((Operand((9, 31)), Operand((4,), "i32", [-1, 8, 9, 2])), note="outside")
        ids = Operand((3,), "i32", [4, 2, 0], pad=(2,))
        yield Case((Operand((5, 64), "q8_0", pad=(1, 32)), ids), note="view")
