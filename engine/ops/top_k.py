"""top_k: indices of the largest values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, I32, Case, DType, Operand, OpSpec, Param, Shape, Tensor
from ._common import rows_dense


class TopK(OpSpec):
    name = "top_k"
    doc = "Indices of the k largest values of each row, descending; lower index first on ties."
    operands = ("x f32 [.., n]",)
    rows_of = 0
    params = (Param("k", "i", doc="1 to n"),)
    cost = "1 an element of x"
    tolerance = 0.0

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        (x,) = srcs
        k = params["k"]
        if x.dtype is not F32 or not x.shape or not rows_dense(x):
            raise self.fail("x must be f32 [.., n] with dense rows", x)
        if not 1 <= k <= x.shape[-1]:
            raise self.fail(f"k={k} is not in 1..{x.shape[-1]}", x)
        return I32, (*x.shape[:-1], k)

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        (x,) = srcs
        order = np.argsort(-x, axis=-1, kind="stable")
        return order[..., : params["k"]].astype(np.int32)

    def flops(self, out: Tensor) -> int:
        return out.live_srcs()[0].size

    def cases(self) -> Iterator[Case]:
        yield Case((Operand((1,)),), {"k": 1}, "one")
        for k in (1, 3, 31):
            yield Case((Operand((3, 31)),), {"k": k}, f"{k} of 31")
        yield Case((Operand((2, 3, 5, 172)),), {"k": 40}, "4d")
        few = lambda rng, shape: rng.integers(-2, 3, shape)  # noqa: E731
        yield Case((Operand((3, 172), data=few),), {"k": 100}, "ties")
        edges = Operand((1, 6), data=[[-0.0, 0.0, -np.inf, np.inf, -0.0, 1.0]])
        yield Case((edges,), {"k": 6}, "edges")
        yield Case((Operand((3, 31), pad=(1, 5)),), {"k": 5}, "view")
        yield Case((Operand((3, 2, 31), permute=(1, 0, 2)),), {"k": 5}, "permuted")
