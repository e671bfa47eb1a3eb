"""soft_max over the last dimension, with scale, additive mask and ALiBi."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape, Tensor
from ._common import alibi_slopes, rows_dense


class SoftMax(OpSpec):
    name = "soft_max"
    doc = (
        "exp(s - max(s)) / sum, with s = scale x + slope(head) mask; row q of every head reads "
        "mask row q. Slopes are 1 unless max_bias > 0 (ALiBi). A row of -inf alone gives zeros."
    )
    operands = ("x f32 [.., n_head, n_q, n_kv]", "mask? f32 or f16 [>= n_q, n_kv]")
    params = (
        Param("scale", "f", 1.0),
        Param("max_bias", "f", 0.0, doc="ALiBi's largest bias; needs a mask"),
    )
    cost = "5 an element"
    tolerance = 1e-6
    in_place = (0,)

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        x, mask = (*srcs, None)[:2]
        if x.dtype is not F32 or not x.shape or not rows_dense(x):
            raise self.fail("x must be f32 [.., n_q, n_kv] with dense rows", *srcs)
        if mask is None:
            if params["max_bias"] > 0:
                raise self.fail("max_bias needs a mask", *srcs)
            return F32, x.shape
        if mask.dtype.name not in ("f32", "f16") or len(mask.shape) != 2 or not rows_dense(mask):
            raise self.fail("the mask must be f32 or f16 [n_q, n_kv] with dense rows", *srcs)
        n_q = x.shape[-2] if len(x.shape) > 1 else 1
        if mask.shape[1] != x.shape[-1] or mask.shape[0] < n_q:
            raise self.fail("the mask must cover x's rows and match their length", *srcs)
        return F32, x.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        x, mask = (*srcs, None)[:2]
        s = x.astype(np.float64) * params["scale"]
        if mask is not None:
            n_q = x.shape[-2] if x.ndim > 1 else 1
            n_head = x.shape[-3] if x.ndim > 2 else 1
            slopes = alibi_slopes(n_head, params["max_bias"])
            bias = slopes[:, None, None] * mask[:n_q].astype(np.float64)
            s = s + (bias if x.ndim > 2 else bias.reshape(x.shape))
        top = s.max(axis=-1, keepdims=True, initial=-np.inf)
        e = np.exp(s - np.where(np.isneginf(top), 0, top))
        total = e.sum(axis=-1, keepdims=True)
        return (e / np.where(total == 0, 1, total)).astype(np.float32)

    def flops(self, out: Tensor) -> int:
        return 5 * out.size

    def cases(self) -> Iterator[Case]:
        def causal(rng: np.random.Generator, shape: Shape) -> np.ndarray:
            i, j = np.indices(shape)
            return np.where(j <= i + shape[1] // 2, 0.0, -np.inf)

        def distance(rng: np.random.Generator, shape: Shape) -> np.ndarray:
            i, j = np.indices(shape)
            return np.where(j <= i, (j - i) * 1.0, -np.inf)

        for shape in ((1,), (3, 31), (2, 3, 172), (2, 3, 5, 31)):
            yield Case((Operand(shape),), note="x".join(map(str, shape)))
        scaled = {"scale": 0.125}
        for t in ("f32", "f16"):
            mask = Operand((5, 31), t, causal)
            yield Case((Operand((4, 5, 31)), mask), scaled, note=f"{t} mask")
            yield Case((Operand((2, 3, 5, 31)), mask), scaled, note=f"{t} mask, 4d")
        yield Case((Operand((5, 31)), Operand((5, 31), data=causal)), scaled, note="2d mask")
        yield Case((Operand((4, 3, 31)), Operand((8, 31), "f16", causal)), scaled, note="more rows")
        for n_head in (1, 3, 8, 12):
            yield Case(
                (Operand((n_head, 7, 7)), Operand((7, 7), data=distance)),
                {"scale": 0.3, "max_bias": 8.0},
                note=f"alibi {n_head} heads",
            )
        view = Operand((2, 5, 31), pad=(1, 1, 3))
        yield Case((view, Operand((5, 31), pad=(1, 5), data=causal)), note="views")
        yield Case((Operand((2, 5, 31), permute=(1, 0, 2)),), note="permuted")
        yield Case((Operand((2, 31), data=1e4), Operand((2, 31))), note="large and equal")
        wide = lambda rng, shape: rng.standard_normal(shape) * 1e4  # noqa: E731
        yield Case((Operand((3, 172), data=wide),), note="large")
        hidden = Operand((2, 31), data=[[-np.inf], [0.0]])
        yield Case((Operand((2, 31)), hidden), note="all masked")
