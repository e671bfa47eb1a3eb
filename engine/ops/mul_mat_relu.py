"""mul_mat_relu: a projection and its ReLU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Shape, Tensor, op_spec
from ._common import FLOATS, QUANTS, block_of, positive
from .mul_mat import infer_mul_mat


class MulMatRelu(OpSpec):
    name = "mul_mat_relu"
    doc = "relu(mul_mat(w, x))."
    operands: ClassVar[tuple[str, ...]] = ("w any float or quantized [n, k]", "x f32 [m, k]")
    rows_of = 1
    weights = (0,)
    by_column: ClassVar[tuple[int, ...]] = (0,)
    cost = "2 m n k + m n"
    tolerance = 5e-4
    fused_from: ClassVar[tuple[str, ...]] = ("mul_mat", "relu")
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        return F32, infer_mul_mat(self, *srcs)

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        return op_spec("relu").reference(op_spec("mul_mat").reference(*srcs))

    def flops(self, out: Tensor) -> int:
        return (2 * out.live_srcs()[1].shape[-1] + 1) * out.size

    def cases(self) -> Iterator[Case]:
        for t in FLOATS + QUANTS:
            block = block_of(t)
            for k in (block, 10 * block) if block > 1 else (31, 192):
                for n, m in ((1, 1), (31, 1), (33, 3), (18, 9)):
                    data = positive if n == 1 else None
                    w = Operand((n, k), t, data, role="weight")
                    yield Case((w, Operand((m, k), data=data)), note=f"{t} {n}x{k} by {m}")
        x = Operand((2, 192), data=lambda rng, shape: [[np.nan], [1.0]] * rng.uniform(1, 2, shape))
        for t in FLOATS:
            yield Case((Operand((31, 192), t, role="weight"), x), note=f"{t} NaN")
