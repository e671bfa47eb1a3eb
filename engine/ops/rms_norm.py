"""rms_norm: rows divided by their root mean square; and its fusions with the weight and a sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape, Tensor, op_spec
from ._common import rows_dense


class RmsNorm(OpSpec):
    name = "rms_norm"
    doc = "x / sqrt(mean(x^2) + eps) over the last dimension (Zhang and Sennrich 2019)."
    operands = ("x f32 [.., d]",)
    rows_of = 0
    params = (Param("eps", "f", doc="added to the mean square"),)
    cost = "4 an element"
    in_place = (0,)

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        (x,) = srcs
        if x.dtype is not F32 or not x.shape or not rows_dense(x):
            raise self.fail("x must be f32 [.., d] with dense rows", *srcs)
        return F32, x.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        x = srcs[0].astype(np.float64)
        mean = np.sum(x * x, axis=-1, keepdims=True) / max(x.shape[-1], 1)
        return (x / np.sqrt(mean + params["eps"])).astype(np.float32)

    def flops(self, out: Tensor) -> int:
        return 4 * out.size

    def cases(self) -> Iterator[Case]:
        for shape in ((1,), (1, 3), (5, 31), (3, 172), (2, 3, 5, 64)):
            yield Case((Operand(shape),), {"eps": 1e-5}, note="x".join(map(str, shape)))
        yield Case((Operand((3, 31), pad=(1, 5)),), {"eps": 1e-6}, note="view")
        yield Case((Operand((3, 2, 31), permute=(1, 0, 2)),), {"eps": 1e-6}, note="permuted")
        yield Case((Operand((2, 172), data=0.0),), {"eps": 1e-5}, note="zeros")
        large = lambda rng, shape: rng.standard_normal(shape) * 1e15  # noqa: E731
        yield Case((Operand((2, 172), data=large),), {"eps": 1e-5}, note="large")
        small = lambda rng, shape: rng.standard_normal(shape) * 1e-3  # noqa: E731
        yield Case((Operand((2, 172), data=small),), {"eps": 1e-5}, note="eps counts")


class RmsNormMul(OpSpec):
    name = "rms_norm_mul"
    doc = "rms_norm(x) * w."
    operands = ("x f32 [.., d]", "w f32 [d]")
    rows_of = 0
    params = RmsNorm.params
    cost = "5 an element"
    fused_from = ("rms_norm", "mul")
    in_place = (0,)

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        x, w = srcs
        if x.dtype is not F32 or not x.shape or not rows_dense(x):
            raise self.fail("x must be f32 [.., d] with dense rows", *srcs)
        if w.dtype is not F32 or w.shape != x.shape[-1:] or not rows_dense(w):
            raise self.fail("w must be dense f32 [d]", *srcs)
        return F32, x.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        x, w = srcs
        return op_spec("mul").reference(op_spec("rms_norm").reference(x, **params), w)

    def flops(self, out: Tensor) -> int:
        return 5 * out.size

    def cases(self) -> Iterator[Case]:
        for case in op_spec("rms_norm").cases():
            (x,) = case.srcs
            assert x is not None
            w = Operand(x.shape[-1:], role="weight")
            yield Case((x, w), case.params, note=case.note)


class RmsNormAdd(OpSpec):
    name = "rms_norm_add"
    doc = "rms_norm_mul(x, w) + r."
    operands = ("x f32 [.., d]", "w f32 [d]", "r f32, of x's shape")
    rows_of = 0
    params = RmsNorm.params
    cost = "6 an element"
    fused_from = ("rms_norm_mul", "add")
    in_place = (2, 0)
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        x, w, r = srcs
        if any(t.dtype is not F32 or not t.shape or not rows_dense(t) for t in srcs):
            raise self.fail("operands must be f32 with dense rows", *srcs)
        if w.shape != x.shape[-1:] or r.shape != x.shape:
            raise self.fail("w must be [d] and r of x's shape [.., d]", *srcs)
        return F32, x.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        x, w, r = srcs
        return op_spec("add").reference(op_spec("rms_norm_mul").reference(x, w, **params), r)

    def flops(self, out: Tensor) -> int:
        return 6 * out.size

    def cases(self) -> Iterator[Case]:
        for case in op_spec("rms_norm_mul").cases():
            x, w = case.srcs
            assert x is not None
            yield Case((x, w, Operand(x.shape)), case.params, note=case.note)
        x, r = Operand((3, 5, 64)), Operand((3, 5, 64), permute=(1, 0, 2))
        yield Case((x, Operand((64,)), r), {"eps": 1e-5}, note="weights that are computed")
        for d in (4096, 5376, 9000):  # what a thread of a block keeps of a row, and more
            srcs = Operand((2, d)), Operand((d,), role="weight"), Operand((2, d))
            yield Case(srcs, {"eps": 1e-6}, note=f"2x{d}")
