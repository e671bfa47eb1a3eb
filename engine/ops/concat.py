"""concat: two tensors end to end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import Case, DType, Operand, OpSpec, Param, Shape, Tensor, is_in_place
from ._common import FLOATS


class Concat(OpSpec):
    name = "concat"
    doc = "a followed by b along a dimension."
    operands = ("a any type but quantized", "b a's type; a's shape but for the axis")
    rows_of = 0
    params = (Param("axis", "i", doc="the dimension joined, counted from the innermost, -1"),)
    cost = "0"
    tolerance = 0.0

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        a, b = srcs
        axis = params["axis"]
        if a.dtype is not b.dtype or a.dtype.is_quantized:
            raise self.fail("operands must have one type, not a quantized one", *srcs)
        if not -len(a.shape) <= axis < 0:
            raise self.fail(f"axis={axis} is not a dimension counted from the innermost, -1", *srcs)
        shape, other = list(a.shape), list(b.shape)
        if len(shape) == len(other):
            shape[axis] = other[axis] = a.shape[axis] + b.shape[axis]
        if shape != other:
            raise self.fail(f"shapes differ beside axis {axis}", *srcs)
        return a.dtype, tuple(shape)

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        return np.concatenate(srcs, axis=params["axis"])

    def place_of(self, out: Tensor, i: int) -> tuple[int, tuple[int, ...]]:
        axis, first = out.params["axis"], out.srcs[0]
        assert first is not None
        return i * first.shape[axis] * out.strides[axis], out.strides

    def flops(self, out: Tensor) -> int:
        return 0

    def bytes(self, out: Tensor) -> int:
        return sum(2 * s.nbytes for i, s in enumerate(out.live_srcs()) if not is_in_place(out, i))

    def cases(self) -> Iterator[Case]:
        for axis in (-1, -2, -3, -4):
            a, b = [2, 3, 5, 7], [2, 3, 5, 7]
            b[axis] = 31
            yield Case((Operand(tuple(a)), Operand(tuple(b))), {"axis": axis}, f"axis {axis}")
        last = {"axis": -1}
        yield Case((Operand((1,)), Operand((1,))), last, "one")
        for t in (*FLOATS, "i32"):
            data = (lambda rng, s: rng.integers(-99, 99, s)) if t == "i32" else None
            yield Case((Operand((3, 172), t, data), Operand((3, 1), t, data)), last, t)
        yield Case((Operand((3, 31), pad=(1, 5)), Operand((3, 31), pad=(2, 3))), last, "views")
        swap = Operand((5, 3), permute=(1, 0))
        yield Case((swap, Operand((5, 2))), last, "permuted")
        yield Case((Operand((2, 3)), swap), {"axis": -2}, "permuted, outer")
