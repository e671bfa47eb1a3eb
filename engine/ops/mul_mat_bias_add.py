"""mul_mat_bias_add: a projection back to the residual stream, with a bias."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Shape, Tensor, op_spec
from ._common import FLOATS, QUANTS, block_of, positive, rows_dense
from .mul_mat import infer_mul_mat


class MulMatBiasAdd(OpSpec):
    name = "mul_mat_bias_add"
    doc = "(mul_mat(w, x) + b) + r."
    operands = ("w any float or quantized [n, k]", "x f32 [m, k]", "b f32 [n]", "r f32 [m, n]")
    rows_of = 1
    weights = (0,)
    by_column = (0, 2, 3)
    cost = "2 m n k + 2 m n"
    tolerance = 5e-4
    fused_from = ("mul_mat_add", "add")
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        w, x, b, r = srcs
        shape = infer_mul_mat(self, w, x)
        if any(t.dtype is not F32 or not rows_dense(t) for t in (b, r)):
            raise self.fail("b and r must be f32 with dense rows", *srcs)
        if b.shape != shape[-1:] or r.shape != shape:
            raise self.fail(f"b must be {list(shape[-1:])} and r {list(shape)}", *srcs)
        return F32, shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        *product, r = srcs
        return op_spec("add").reference(op_spec("mul_mat_add").reference(*product), r)

    def flops(self, out: Tensor) -> int:
        return out.size * (2 * out.live_srcs()[0].shape[-1] + 2)

    def cases(self) -> Iterator[Case]:
        for t in FLOATS + QUANTS:
            k = {1: 192, 256: 2560}.get(block_of(t), 512)
            for n, m in ((1, 1), (31, 1), (33, 3)):
                data = positive if n == 1 else None
                w = Operand((n, k), t, data, role="weight")
                rest = Operand((n,), data=data, role="weight"), Operand((m, n), data=data)
                yield Case((w, Operand((m, k), data=data), *rest), note=f"{t} {n}x{k} by {m}")
