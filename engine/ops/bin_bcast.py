"""add, sub, mul, div: element by element, the second operand repeated to the first one's shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import Case, DType, Operand, OpSpec, Shape
from ._common import FLOATS, ROUNDED, is_floating


def repeat_to(b: np.ndarray, shape: Shape) -> np.ndarray:
    """`b` repeated to `shape`: index i of a dimension reads b's i modulo its length (ggml's rule).

    Dimensions are aligned at the innermost; numpy's broadcasting is the case of length one.
    """
    b = b.reshape((1,) * (len(shape) - b.ndim) + b.shape)
    for axis, n in enumerate(shape):
        b = b.take(np.arange(n) % b.shape[axis], axis=axis)
    return b


class _BinBcast(OpSpec):
    operands = ("a f32, f16 or bf16", "b f32, f16 or bf16; every dimension divides a's")
    rows_of = 0
    in_place = (0,)

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        a, b = srcs
        if not (is_floating(a) and is_floating(b)):
            raise self.fail("operands must be f32, f16 or bf16", *srcs)
        aligned = zip(reversed(a.shape), reversed(b.shape), strict=False)
        if len(b.shape) > len(a.shape) or any(m == 0 or n % m for n, m in aligned):
            raise self.fail("the second shape does not repeat to the first", *srcs)
        return a.dtype, a.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        a, b = srcs
        with np.errstate(all="ignore"):
            return self.combine(a, repeat_to(b, a.shape)).astype(np.float32)

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def cases(self) -> Iterator[Case]:
        # Divisors stay away from zero, where one rounding of b would be all of the result.
        def away(rng: np.random.Generator, shape: Shape) -> np.ndarray:
            return rng.uniform(0.5, 2, shape) * rng.choice([-1, 1], shape)

        def b(*shape: int, dtype: str = "f32", **how: Any) -> Operand:
            return Operand(shape, dtype, away if self.name == "div" else None, **how)

        for ta in FLOATS:
            for tb in FLOATS:
                yield Case((Operand((3, 31), ta), b(3, 31, dtype=tb)), note=f"{ta} {tb}",
                           tolerance=ROUNDED[ta])  # fmt: skip
        yield Case((Operand((1,)), b(1)), note="one")
        yield Case((Operand((5, 172)), b(172)), note="row")
        yield Case((Operand((3, 2, 5, 31)), b(1)), note="scalar")
        yield Case((Operand((3, 31)), b(3, 1)), note="column")
        yield Case((Operand((4, 6, 3, 8)), b(2, 3, 1, 4)), note="modulo")
        yield Case((Operand((12, 16)), b(6, 4)), note="modulo, 2d")
        yield Case((Operand((5, 63)), b(9)), note="odd row, modulo")
        yield Case((Operand((4, 6, 3, 8)), b(6, 3, 8)), note="fewer dims")
        yield Case((Operand((2, 3, 31), pad=(1, 2, 5)), b(3, 31, pad=(1, 7))), note="views")
        yield Case((Operand((2, 5, 3), permute=(0, 2, 1)), b(5, 3, permute=(1, 0))),
                   note="permuted")  # fmt: skip
        yield Case((Operand((6, 5, 31), "f16", permute=(1, 0, 2)), b(3, 5, 31)), note="f16 view",
                   tolerance=ROUNDED["f16"])  # fmt: skip
        edges = [-0.0, 0.0, 1e30, -1e30, 1e-30, np.inf]
        yield Case((Operand((6,), data=edges), b(1)), note="edges")


class Add(_BinBcast):
    name = "add"
    doc = "a + b, in a's type and shape; b is read modulo its length in every dimension."

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a + b


class Sub(_BinBcast):
    name = "sub"
    doc = "a - b, broadcast as in add."

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a - b


class Mul(_BinBcast):
    name = "mul"
    doc = "a * b, broadcast as in add."

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a * b


class Div(_BinBcast):
    name = "div"
    doc = "a / b, broadcast as in add."

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a / b
