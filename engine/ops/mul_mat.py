"""mul_mat: a weight times a batch of activations, the weight's rows being the outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Shape, Tensor
from ._common import (
    FLOATS,
    GRID_QUANTS,
    QUANTS,
    TABLE_QUANTS,
    block_of,
    positive,
    rows_dense,
)


def infer_mul_mat(spec: OpSpec, w: Tensor, x: Tensor, *rest: Any) -> Shape:
    """Shape of x w^T; raises `spec`'s ShapeError when w and x do not multiply."""
    srcs = (w, x, *rest)
    if w.dtype.is_integer or len(w.shape) < 2 or not rows_dense(w):
        raise spec.fail("w must be [.., n, k] of a float or quantized type, rows dense", *srcs)
    if x.dtype is not F32 or len(x.shape) < 2 or not rows_dense(x):
        raise spec.fail("x must be f32 [.., m, k] with dense rows", *srcs)
    if w.shape[-1] != x.shape[-1]:
        raise spec.fail(f"inner lengths {w.shape[-1]} and {x.shape[-1]} differ", *srcs)
    batch_w = (1,) * (4 - len(w.shape)) + w.shape[:-2]
    batch_x = (1,) * (4 - len(x.shape)) + x.shape[:-2]
    if any(b == 0 or c % b for b, c in zip(batch_w, batch_x, strict=True)):
        raise spec.fail("w's batch dimensions do not divide x's", *srcs)
    return (*x.shape[:-1], w.shape[-2])


class MulMat(OpSpec):
    name = "mul_mat"
    doc = (
        "x w^T: result[.., i, j] = sum_k x[.., i, k] w[.., j, k]. Batch index c of x uses w's "
        "c // (x's batch / w's batch), as grouped heads do. Kernels may round x to the type their "
        "dot product wants, always the same way for a row whatever m is."
    )
    operands = (
        "w any float or quantized [b3?, b2?, n, k]",
        "x f32 [c3?, c2?, m, k]; c3 % b3 == c2 % b2 == 0",
    )
    rows_of = 1
    weights = (0,)
    by_column = (0,)
    cost = "2 m n k a batch"
    tolerance = 5e-4

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        return F32, infer_mul_mat(self, *srcs)

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        w, x = (s.astype(np.float64).reshape((1,) * (4 - s.ndim) + s.shape) for s in srcs)
        for axis in (0, 1):
            w = np.repeat(w, x.shape[axis] // w.shape[axis], axis=axis)
        y = x @ w.swapaxes(-1, -2)
        return y.reshape(*srcs[1].shape[:-1], w.shape[-2]).astype(np.float32)

    def flops(self, out: Tensor) -> int:
        return 2 * out.size * out.live_srcs()[0].shape[-1]

    def cases(self) -> Iterator[Case]:
        for t in FLOATS + QUANTS:
            block = block_of(t)
            ks = (1, 3, 31, 172) if block == 1 else (block, 3 * block)
            # In f32 nothing is rounded but the sum.
            tolerance = 1e-7 if t == "f32" else None
            for k in ks:
                for n, m in ((1, 1), (3, 1), (31, 3), (172, 1), (33, 31)):
                    data = positive if n * m < 31 else None
                    w = Operand((n, k), t, data, role="weight")
                    x = Operand((m, k), data=data)
                    yield Case((w, x), {}, f"{t} {n}x{k} by {m}", tolerance)
        # As many columns as a step of many sequences has.
        for t in (*FLOATS[1:], *QUANTS):
            for i, m in enumerate((2, 4, 7, 16, 33, 64, 100, 128, 200)):
                n, k = (1, 37, 131)[i % 3], 256 * (1 + i % 2)
                data = positive if n == 1 else None
                w, x = Operand((n, k), t, data, role="weight"), Operand((m, k), data=data)
                yield Case((w, x), {}, f"{t} {n}x{k} by {m}")
        for t in TABLE_QUANTS + GRID_QUANTS:
            for k, n, m in ((512, 172, 1), (2304, 37, 3), (512, 33, 12), (768, 131, 33),
                            (256, 37, 200)):  # fmt: skip
                w, x = Operand((n, k), t, role="weight"), Operand((m, k))
                yield Case((w, x), {}, f"{t} {n}x{k} by {m}")
            yield Case((Operand((2, 5, 256), t), Operand((4, 3, 256))), note=f"{t} batch")
            yield Case((Operand((1, 7, 256), t, pad=(1, 2, 0)), Operand((3, 256))),
                       note=f"{t} views")  # fmt: skip
        for t in ("f32", "f16", "q8_0", "q4_K"):
            k = block_of(t) if block_of(t) > 1 else 31
            pad = (0, 1, block_of(t)) if block_of(t) > 1 else (0, 1, 5)
            for batch_w, batch_x in (((2,), (6,)), ((1, 1), (2, 3)), ((2, 3), (4, 3))):
                w, x = Operand((*batch_w, 5, k), t), Operand((*batch_x, 3, k))
                yield Case((w, x), note=f"{t} batch {batch_w} {batch_x}")
            yield Case((Operand((5, k), t), Operand((2, 2, 3, k))), note=f"{t} one weight")
            yield Case((Operand((2, 5, k), t, pad=pad), Operand((2, 3, k), pad=(1, 1, 7))),
                       note=f"{t} views")  # fmt: skip
            swap = (1, 0, 2)
            yield Case((Operand((2, 5, k), t, permute=swap), Operand((4, 3, k), permute=swap)),
                       note=f"{t} permuted")  # fmt: skip
            # A row and a block of zeros: their scale is zero.
            x = Operand((3, k), data=lambda rng, s: rng.standard_normal(s) * [[1], [0], [1e-3]])
            yield Case((Operand((7, k), t), x), note=f"{t} zero row")
            zero = Operand((7, k), t, data=0.0)
            yield Case((zero, Operand((3, k))), note=f"{t} zero weight")
