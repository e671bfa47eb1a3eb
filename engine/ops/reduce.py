"""sum, mean, max, argmax: one dimension reduced, kept with length one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, I32, Case, DType, Operand, OpSpec, Param, Shape, Tensor


def _numbers(x: np.ndarray) -> np.ndarray:
    """x with -inf for NaN: what max and argmax see."""
    return np.where(np.isnan(x), np.float32(-np.inf), x)


def _some_nan(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return np.where(rng.uniform(size=shape) < 0.3, np.nan, rng.standard_normal(shape))


class _Reduce(OpSpec):
    operands = ("x f32",)
    rows_of = 0
    params = (Param("axis", "i", -1, doc="the dimension reduced, counted from the innermost, -1"),)
    cost = "1 an element of x"
    result = F32

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        (x,) = srcs
        axis = params["axis"]
        if x.dtype is not F32:
            raise self.fail("x must be f32", x)
        if not -len(x.shape) <= axis < 0:
            raise self.fail(f"axis={axis} is not a dimension counted from the innermost, -1", x)
        if x.shape[axis] == 0:
            raise self.fail(f"axis={axis} is empty", x)
        shape = list(x.shape)
        shape[axis] = 1
        return self.result, tuple(shape)

    def flops(self, out: Tensor) -> int:
        return out.live_srcs()[0].size

    def cases(self) -> Iterator[Case]:
        yield Case((Operand((1,)),), note="one")
        for shape in ((172,), (31, 3), (2, 3, 5, 31)):
            for axis in range(-len(shape), 0):
                name = f"{'x'.join(map(str, shape))} axis {axis}"
                yield Case((Operand(shape),), {"axis": axis}, name)
        yield Case((Operand((3, 31), pad=(2, 5)),), {"axis": -1}, "view")
        yield Case((Operand((3, 31), pad=(2, 5)),), {"axis": -2}, "view, outer")
        yield Case((Operand((5, 3), permute=(1, 0)),), {"axis": -1}, "transposed")
        for n in (8, 1001, 2600):
            yield Case((Operand((3, n)),), {"axis": -1}, f"rows of {n}")
            yield Case((Operand((n, 3)),), {"axis": -2}, f"columns of {n}")
        ties = Operand((4, 5), data=[[1, 3, 3, 2, 3], [-0.0, 0, -0.0, 0, 0], [-2, -2, -3, -3, -2],
                                     [-np.inf, -np.inf, 7, 7, 1]])  # fmt: skip
        if self.name in ("max", "argmax"):
            yield Case((ties,), {"axis": -1}, "ties")
            yield Case((ties,), {"axis": -2}, "ties, outer")
            nan, low = np.nan, -np.inf
            edges = [[nan, 1, 2, nan], [nan, nan, nan, nan], [nan, low, nan, low], [3, nan, 9, 9],
                     [low, nan, low, low], [nan, low, low, -1]]  # fmt: skip
            for axis in (-1, -2):
                yield Case((Operand((6, 4), data=edges),), {"axis": axis}, f"NaN, axis {axis}")
            for n in (33, 1001, 2600):
                for a, shape in ((-1, (5, n)), (-2, (n, 5))):
                    yield Case((Operand(shape, data=_some_nan),), {"axis": a}, f"NaN, {n}, {a}")
            yield Case((Operand((2, 700), data=nan),), {"axis": -1}, "NaN alone")


class Sum(_Reduce):
    name = "sum"
    doc = "Sum along a dimension."

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        (x,) = srcs
        return x.sum(axis=params["axis"], keepdims=True, dtype=np.float64).astype(np.float32)


class Mean(_Reduce):
    name = "mean"
    doc = "Arithmetic mean along a dimension."

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        (x,) = srcs
        return x.mean(axis=params["axis"], keepdims=True, dtype=np.float64).astype(np.float32)


class Max(_Reduce):
    name = "max"
    doc = "Largest value along a dimension. A NaN counts as -inf: NaN alone gives -inf."
    tolerance = 0.0

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        return _numbers(srcs[0]).max(axis=params["axis"], keepdims=True)


class Argmax(_Reduce):
    name = "argmax"
    doc = "Index of the largest value along a dimension, the first on ties. A NaN counts as -inf."
    tolerance = 0.0
    result = I32

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        return _numbers(srcs[0]).argmax(axis=params["axis"], keepdims=True).astype(np.int32)
