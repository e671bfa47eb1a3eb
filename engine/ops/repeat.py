"""repeat: a tensor tiled along its dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import Case, DType, Operand, OpSpec, Param, Shape, Tensor
from ._common import FLOATS


class Repeat(OpSpec):
    name = "repeat"
    doc = "x tiled: r0 times along the innermost dimension, r1 along the next, and so on."
    operands = ("x any type but quantized",)
    params = tuple(Param(f"r{i}", "i", 1, doc=f"times along axis {-1 - i}") for i in range(4))
    cost = "0"
    tolerance = 0.0

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        (x,) = srcs
        times = [params[p.name] for p in self.params]
        if x.dtype.is_quantized:
            raise self.fail(f"{x.dtype.name} is quantized", x)
        if min(times) < 1:
            raise self.fail(f"times {times} must be at least one", x)
        n_dims = max([len(x.shape), *(i + 1 for i, r in enumerate(times) if r > 1)])
        shape = (1,) * (n_dims - len(x.shape)) + x.shape
        return x.dtype, tuple(n * r for n, r in zip(shape, reversed(times[:n_dims]), strict=True))

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        (x,) = srcs
        times = [params[p.name] for p in self.params]
        while len(times) > x.ndim and times[-1] == 1:
            times.pop()
        return np.tile(x, times[::-1])

    def flops(self, out: Tensor) -> int:
        return 0

    def cases(self) -> Iterator[Case]:
        yield Case((Operand((1,)),), {"r0": 172}, "one")
        yield Case((Operand((3, 31)),), {"r0": 2}, "innermost")
        yield Case((Operand((3, 31)),), {"r1": 3}, "outer")
        yield Case((Operand((31,)),), {"r1": 3, "r3": 2}, "more dims")
        yield Case((Operand((2, 3, 5, 7)),), {"r0": 2, "r1": 3, "r2": 1, "r3": 2}, "all")
        yield Case((Operand((3, 31)),), {}, "once")
        for t in (*FLOATS, "i32"):
            data = (lambda rng, s: rng.integers(-99, 99, s)) if t == "i32" else None
            yield Case((Operand((3, 5), t, data),), {"r0": 2, "r1": 2}, t)
        yield Case((Operand((3, 31), pad=(1, 5)),), {"r0": 2, "r1": 2}, "view")
        yield Case((Operand((5, 3), permute=(1, 0)),), {"r0": 2, "r1": 2}, "permuted")
