"""fatrelu: ReLU that also makes small positive values zero."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape


class FatRelu(OpSpec):
    name = "fatrelu"
    doc = "x where it is above cut, else 0; NaN stays NaN (Kurtz et al. 2020)."
    operands = ("x f32",)
    rows_of = 0
    params = (Param("cut", "f", doc="0 or more"),)
    in_place = (0,)

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        (x,) = srcs
        if x.dtype is not F32:
            raise self.fail("x must be f32", x)
        if not 0 <= params["cut"] < math.inf:
            raise self.fail(f"cut={params['cut']}, expected 0 or more", x)
        return F32, x.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        (x,) = srcs
        return np.where(x <= np.float32(params["cut"]), np.float32(0), x)

    def cases(self) -> Iterator[Case]:
        for shape in ((1,), (3, 172), (2, 3, 5, 31)):
            yield Case((Operand(shape),), {"cut": 0.3}, "x".join(map(str, shape)))
        yield Case((Operand((3, 31), pad=(1, 5)),), {"cut": 0.5}, "view")
        yield Case((Operand((2, 5, 3), permute=(0, 2, 1)),), {"cut": 0.01}, "permuted")
        yield Case((Operand((3, 31)),), {"cut": 0.0}, "as relu")
        edges = [-math.inf, math.inf, math.nan, -0.0, 0.25, 0.26, -0.25, 1e-30, 1e30]
        yield Case((Operand((len(edges),), data=edges),), {"cut": 0.25}, "edges")
