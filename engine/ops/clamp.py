"""clamp: every element brought into a range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape


class Clamp(OpSpec):
    name = "clamp"
    doc = "min(max(x, min), max)."
    operands = ("x f32",)
    rows_of = 0
    params = (Param("min", "f"), Param("max", "f"))
    in_place = (0,)

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        (x,) = srcs
        if x.dtype is not F32:
            raise self.fail("x must be f32", x)
        if not params["min"] <= params["max"]:
            raise self.fail(f"min={params['min']} is above max={params['max']}", x)
        return F32, x.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        return np.clip(srcs[0], np.float32(params["min"]), np.float32(params["max"]))

    def cases(self) -> Iterator[Case]:
        for shape in ((1,), (3, 172), (2, 3, 5, 31)):
            yield Case((Operand(shape),), {"min": -0.5, "max": 0.7}, "x".join(map(str, shape)))
        yield Case((Operand((3, 31), pad=(1, 5)),), {"min": 0.0, "max": 0.7}, "view")
        yield Case((Operand((2, 5, 3), permute=(0, 2, 1)),), {"min": -0.5, "max": 9.0}, "permuted")
        half = {"min": -np.inf, "max": 0.25}
        yield Case((Operand((3, 31)),), half, "no lower bound")
        edges = Operand((5,), data=[-np.inf, np.inf, -0.0, 1e30, 0.5])
        yield Case((edges,), {"min": -1.0, "max": 0.5}, "edges")
