"""sigmoid_mul: values times the sigmoid of a gate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Shape, Tensor, op_spec


class SigmoidMul(OpSpec):
    name = "sigmoid_mul"
    doc = "sigmoid(gate) x (Dauphin et al. 2017)."
    operands = ("gate f32", "x f32, of gate's shape")
    rows_of = 0
    cost = "5 an element"
    fused_from = ("sigmoid", "mul")
    in_place = (1, 0)
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        gate, x = srcs
        if any(t.dtype is not F32 for t in srcs) or gate.shape != x.shape:
            raise self.fail("gate and x must be f32 of one shape", *srcs)
        return F32, x.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        gate, x = srcs
        return op_spec("mul").reference(x, op_spec("sigmoid").reference(gate))

    def flops(self, out: Tensor) -> int:
        return 5 * out.size

    def cases(self) -> Iterator[Case]:
        for shape in ((1,), (31,), (3, 172), (2, 3, 5, 64), (1, 4096)):
            yield Case((Operand(shape), Operand(shape)), note="x".join(map(str, shape)))
        yield Case((Operand((3, 64), pad=(1, 7)), Operand((3, 64))), note="view")
        yield Case((Operand((3, 172)), Operand((3, 172), permute=(1, 0))), note="permuted")
