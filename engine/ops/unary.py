"""Element-wise functions of one operand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import Case, DType, Operand, OpSpec, Shape, Tensor
from ._common import FLOATS, ROUNDED, gelu, is_floating, sigmoid, silu

_EDGES = (-0.0, 0.0, 1e-30, -1e-30, 0.5, -0.5, 10.0, -10.0, 80.0, -80.0, 1e4, -1e4)


class _Unary(OpSpec):
    operands = ("x f32, f16 or bf16",)
    rows_of = 0
    in_place = (0,)
    cost = "1 an element"
    per_element = 1
    edges: tuple[float, ...] = _EDGES
    data: Any = None

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        (x,) = srcs
        if not is_floating(x):
            raise self.fail("the operand must be f32, f16 or bf16", x)
        return x.dtype, x.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        (x,) = srcs
        with np.errstate(all="ignore"):
            return self.f(x.astype(np.float64)).astype(np.float32)

    def f(self, x: np.ndarray) -> np.ndarray:
        """The function, on float64."""
        raise NotImplementedError

    def flops(self, out: Tensor) -> int:
        return self.per_element * out.size

    def cases(self) -> Iterator[Case]:
        def x(*shape: int, dtype: str = "f32", **how: Any) -> Operand:
            return Operand(shape, dtype, self.data, **how)

        for t in FLOATS:
            yield Case((x(3, 172, dtype=t),), note=t, tolerance=ROUNDED[t])
            edges = Operand((len(self.edges),), t, list(self.edges))
            yield Case((edges,), note=f"{t} edges", tolerance=ROUNDED[t])
        yield Case((x(1),), note="one")
        yield Case((x(2, 3, 5, 31),), note="4d")
        yield Case((x(3, 31, pad=(2, 5)),), note="view")
        yield Case((x(2, 5, 3, permute=(0, 2, 1)),), note="permuted")
        yield Case((x(5, 3, dtype="f16", permute=(1, 0)),), note="f16 permuted",
                   tolerance=ROUNDED["f16"])  # fmt: skip


class Silu(_Unary):
    name = "silu"
    doc = "x / (1 + exp(-x))."
    cost = "4 an element"
    per_element = 4

    def f(self, x: np.ndarray) -> np.ndarray:
        return silu(x)


class Gelu(_Unary):
    name = "gelu"
    doc = "0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."
    cost = "8 an element"
    per_element = 8

    def f(self, x: np.ndarray) -> np.ndarray:
        return gelu(x)


class GeluErf(_Unary):
    name = "gelu_erf"
    doc = "0.5 x (1 + erf(x / sqrt(2)))."
    cost = "4 an element"
    per_element = 4

    def f(self, x: np.ndarray) -> np.ndarray:
        # erfc keeps the small negative tail that 1 + erf rounds away.
        return 0.5 * x * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2))


class Relu(_Unary):
    name = "relu"
    doc = "max(x, 0); NaN stays NaN."
    edges = (*_EDGES, math.nan, -math.nan, math.inf, -math.inf)

    def f(self, x: np.ndarray) -> np.ndarray:
        return np.maximum(x, 0)


class Sigmoid(_Unary):
    name = "sigmoid"
    doc = "1 / (1 + exp(-x))."
    cost = "3 an element"
    per_element = 3

    def f(self, x: np.ndarray) -> np.ndarray:
        return sigmoid(x)


class Tanh(_Unary):
    name = "tanh"
    doc = "Hyperbolic tangent."

    def f(self, x: np.ndarray) -> np.ndarray:
        return np.tanh(x)


class Exp(_Unary):
    name = "exp"
    doc = "e^x; infinity above the type's range, 0 below it."
    edges = (-0.0, 0.0, 1.0, -1.0, 80.0, -80.0, 89.0, -200.0, 1e4, -1e4)

    def f(self, x: np.ndarray) -> np.ndarray:
        return np.exp(x)


class Neg(_Unary):
    name = "neg"
    doc = "-x."

    def f(self, x: np.ndarray) -> np.ndarray:
        return -x


class Sqr(_Unary):
    name = "sqr"
    doc = "x^2."

    def f(self, x: np.ndarray) -> np.ndarray:
        return x * x


def _positive(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return rng.uniform(0, 10, shape)


class Sqrt(_Unary):
    name = "sqrt"
    doc = "Square root; NaN for negative x."
    edges = (0.0, -0.0, 1.0, 4.0, 1e-30, 1e4)
    data = staticmethod(_positive)

    def f(self, x: np.ndarray) -> np.ndarray:
        return np.sqrt(x)


class Abs(_Unary):
    name = "abs"
    doc = "|x|."

    def f(self, x: np.ndarray) -> np.ndarray:
        return np.abs(x)
