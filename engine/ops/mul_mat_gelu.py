"""mul_mat_gelu: a projection, its bias and GELU: the first half of a layer without a gate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape, Tensor, op_spec
from ._common import FLOATS, QUANTS, block_of, positive, rows_dense
from .mul_mat import infer_mul_mat


class MulMatGelu(OpSpec):
    name = "mul_mat_gelu"
    doc = "gelu(mul_mat(w, x) + b); gelu_erf where erf is 1."
    operands = ("w any float or quantized [n, k]", "x f32 [m, k]", "b? f32 [n]")
    rows_of = 1
    weights = (0,)
    by_column = (0, 2)
    params = (Param("erf", "i", 0, doc="1: the form with erf"),)
    cost = "2 m n k + 9 m n"
    tolerance = 5e-4
    fused_from = ("mul_mat", "add", "gelu", "gelu_erf")
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        w, x, b = (*srcs, None)[:3]
        shape = infer_mul_mat(self, w, x)
        if b is not None and (b.dtype is not F32 or b.shape != shape[-1:] or not rows_dense(b)):
            raise self.fail("b must be f32 [n]", *srcs)
        return F32, shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        w, x, b = (*srcs, None)[:3]
        y = op_spec("mul_mat").reference(w, x)
        if b is not None:
            y = op_spec("add").reference(y, b)
        return op_spec("gelu_erf" if params["erf"] else "gelu").reference(y)

    def flops(self, out: Tensor) -> int:
        return (2 * out.live_srcs()[1].shape[-1] + 9) * out.size

    def cases(self) -> Iterator[Case]:
        for t in FLOATS + QUANTS:
            k = {1: 192, 256: 2560}.get(block_of(t), 512)
            for erf in (0, 1):
                for n, m in ((1, 1), (31, 1), (33, 3)):
                    data = positive if n == 1 else None
                    w = Operand((n, k), t, data, role="weight")
                    x, note = Operand((m, k), data=data), f"{t} {n}x{k} by {m}"
                    yield Case((w, x), {"erf": erf}, note)
                    yield Case((w, x, Operand((n,), data=data, role="weight")), {"erf": erf}, note)
