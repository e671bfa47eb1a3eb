"""map_ids: ids looked up in a table of ids: where an expert's matrices lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import I32, Case, DType, Operand, OpSpec, Shape, Tensor
from ._common import rows_dense


class MapIds(OpSpec):
    name = "map_ids"
    doc = "result[i, j] = table[ids[i, j]]; -1 for an id outside the table."
    operands = ("ids i32 [m, u]", "table i32 [n]")
    rows_of = 0
    across = (1,)
    cost = "1 an id"
    tolerance = 0.0

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        ids, table = srcs
        if any(t.dtype is not I32 or not rows_dense(t) for t in srcs):
            raise self.fail("ids and table must be i32 with dense rows", *srcs)
        if len(ids.shape) != 2 or len(table.shape) != 1:
            raise self.fail("ids must be [m, u], and the table one row", *srcs)
        return I32, ids.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        ids, table = srcs
        known = (ids >= 0) & (ids < len(table))
        out = np.full(ids.shape, -1, np.int32)
        out[known] = table[ids[known]]
        return out

    def flops(self, out: Tensor) -> int:
        return out.size

    def cases(self) -> Iterator[Case]:
        def case(m: int, u: int, n: int, pad: Shape = (), note: str = "") -> Case:
            ids = lambda rng, shape: rng.integers(-2, n + 2, shape)  # noqa: E731
            table = lambda rng, shape: rng.permutation(n) - 1  # noqa: E731
            return Case((Operand((m, u), "i32", ids, pad=pad), Operand((n,), "i32", table)),
                        note=note or f"{m} rows of {u} of {n}")  # fmt: skip

        yield case(1, 1, 1)
        yield case(1, 8, 64)
        yield case(31, 3, 17)
        yield case(512, 10, 512)
        yield case(5, 4, 33, (1, 3), "view")
