"""scale: a linear map of every element."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape, Tensor


class Scale(OpSpec):
    name = "scale"
    doc = "x s + b."
    operands = ("x f32",)
    rows_of = 0
    params = (Param("s", "f"), Param("b", "f", 0.0))
    cost = "2 an element"
    in_place = (0,)

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        (x,) = srcs
        if x.dtype is not F32:
            raise self.fail("x must be f32", x)
        return F32, x.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        return (srcs[0].astype(np.float64) * params["s"] + params["b"]).astype(np.float32)

    def flops(self, out: Tensor) -> int:
        return 2 * out.size

    def cases(self) -> Iterator[Case]:
        for shape in ((1,), (3, 172), (2, 3, 5, 31)):
            yield Case((Operand(shape),), {"s": 0.7}, "x".join(map(str, shape)))
            yield Case((Operand(shape),), {"s": -2.5, "b": 0.3}, "shifted")
        yield Case((Operand((3, 31), pad=(1, 5)),), {"s": 0.7, "b": 1.0}, "view")
        yield Case((Operand((2, 5, 3), permute=(0, 2, 1)),), {"s": 0.7}, "permuted")
        yield Case((Operand((3, 31)),), {"s": 0.0, "b": 2.0}, "constant")
