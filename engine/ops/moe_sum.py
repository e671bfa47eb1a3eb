"""moe_sum: what a token's experts gave, added up by their shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Shape, Tensor
from ._common import rows_dense


class MoeSum(OpSpec):
    name = "moe_sum"
    doc = "result[i] = sum_j weights[i, j] x[i, j], in the order of j."
    operands = ("x f32 [m, u, n]", "weights f32 [m, u]")
    rows_of = 0
    cost = "2 an element of x"

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        x, w = srcs
        if x.dtype is not F32 or len(x.shape) != 3 or not rows_dense(x):
            raise self.fail("x must be f32 [m, u, n] with dense rows", *srcs)
        if w.dtype is not F32 or w.shape != x.shape[:2] or not rows_dense(w):
            raise self.fail("weights must be f32 [m, u] with dense rows", *srcs)
        return F32, (x.shape[0], x.shape[2])

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        x, w = srcs
        return np.einsum("iun,iu->in", x, w[: len(x)], dtype=np.float64).astype(np.float32)

    def flops(self, out: Tensor) -> int:
        return 2 * out.live_srcs()[0].size

    def cases(self) -> Iterator[Case]:
        for m, u, n in ((1, 1, 1), (1, 8, 172), (31, 3, 33), (3, 10, 64), (5, 2, 2050)):
            yield Case((Operand((m, u, n)), Operand((m, u))), note=f"{m} rows, {u} of {n}")
        x = Operand((3, 2, 31), pad=(1, 1, 5))
        yield Case((x, Operand((3, 2), pad=(1, 3))), note="views")
