"""layer_norm: rows brought to mean 0 and variance 1, then an affine map if given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape, Tensor
from ._common import rows_dense


class LayerNorm(OpSpec):
    name = "layer_norm"
    doc = (
        "(x - mean(x)) / sqrt(var(x) + eps) * w + b over the last dimension, with the population "
        "variance (Ba, Kiros and Hinton 2016)."
    )
    operands = ("x f32 [.., d]", "w? f32 [d]", "b? f32 [d]")
    rows_of = 0
    params = (Param("eps", "f", doc="added to the variance"),)
    cost = "7 an element"
    in_place = (0,)

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        x = srcs[0]
        if x.dtype is not F32 or not x.shape or not rows_dense(x):
            raise self.fail("x must be f32 [.., d] with dense rows", *srcs)
        for s in srcs[1:]:
            if s is not None and (s.dtype is not F32 or s.shape != x.shape[-1:]):
                raise self.fail("w and b must be f32 [d]", *srcs)
            if s is not None and not rows_dense(s):
                raise self.fail("w and b must be dense", *srcs)
        return F32, x.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        x, w, b = (*srcs, None, None)[:3]
        x = x.astype(np.float64)
        n = max(x.shape[-1], 1)
        y = x - x.sum(axis=-1, keepdims=True) / n
        y /= np.sqrt(np.sum(y * y, axis=-1, keepdims=True) / n + params["eps"])
        if w is not None:
            y = y * w
        if b is not None:
            y = y + b
        return y.astype(np.float32)

    def flops(self, out: Tensor) -> int:
        return 7 * out.size

    def cases(self) -> Iterator[Case]:
        eps = {"eps": 1e-5}
        for d in (3, 31, 172):
            row = Operand((d,), role="weight")
            yield Case((Operand((5, d)),), eps, note="plain")
            yield Case((Operand((5, d)), row), eps, note="w")
            yield Case((Operand((5, d)), row, row), eps, note="w b")
            yield Case((Operand((5, d)), None, row), eps, note="b")
        yield Case((Operand((2, 3, 5, 31)),), eps, note="4d")
        yield Case((Operand((1, 1)),), eps, note="one: all is mean")
        yield Case((Operand((3, 31), pad=(1, 5)),), eps, note="view")
        yield Case((Operand((3, 2, 31), permute=(1, 0, 2)),), eps, note="permuted")
        # The mean is a hundred times the deviation: E[x^2] - E[x]^2 would lose the variance.
        shifted = lambda rng, shape: 100 + rng.standard_normal(shape)  # noqa: E731
        for d in (172, 4096, 9000):
            yield Case((Operand((3, d), data=shifted),), eps, note=f"shifted, {d}")
