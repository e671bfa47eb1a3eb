"""mul_mat_two_add: two projections back to the residual stream, of attention and of a feed-forward
layer beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Shape, Tensor, op_spec
from ._common import FLOATS, QUANTS, block_of, positive, rows_dense
from .mul_mat import infer_mul_mat


class MulMatTwoAdd(OpSpec):
    name = "mul_mat_two_add"
    doc = "mul_mat(w1, x1) + mul_mat(w2, x2) + r + b1 + b2."
    operands = (
        "w1 any float or quantized [n, k1]",
        "x1 f32 [m, k1]",
        "w2 any float or quantized [n, k2]",
        "x2 f32 [m, k2]",
        "r f32 [m, n]",
        "b1? f32 [n]",
        "b2? f32 [n]",
    )
    rows_of = 1
    weights = (0, 2)
    by_column = (0, 2, 4, 5, 6)
    cost = "2 m n (k1 + k2) + m n an addition"
    tolerance = 5e-4
    fused_from = ("mul_mat_add", "mul_mat_bias_add")
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        w1, x1, w2, x2, r, *biases = srcs
        added = [t for t in (r, *biases) if t is not None]
        shape = infer_mul_mat(self, w1, x1, w2, x2, *added)
        other = infer_mul_mat(self, w2, x2, w1, x1, *added)
        if any(t.dtype is not F32 or not rows_dense(t) for t in added):
            raise self.fail("r and the biases must be f32 with dense rows", *srcs)
        if shape != other or r.shape != shape:
            raise self.fail("r and the products must have one shape", *srcs)
        if any(b.shape != shape[-1:] for b in added[1:]):
            raise self.fail(f"biases must be {list(shape[-1:])}", *srcs)
        return F32, shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        w1, x1, w2, x2, r, *biases = srcs
        y = op_spec("mul_mat_add").reference(w1, x1, r)
        for b in biases:
            y = y if b is None else op_spec("add").reference(y, b)
        return op_spec("mul_mat_add").reference(w2, x2, y)

    def flops(self, out: Tensor) -> int:
        ks = (out.srcs[i] for i in (1, 3))
        added = sum(s is not None for s in out.srcs[4:])
        return out.size * (sum(2 * s.shape[-1] for s in ks if s is not None) + 1 + added)

    def cases(self) -> Iterator[Case]:
        for t in FLOATS + QUANTS:
            k = {1: 192, 256: 2560}.get(block_of(t), 512)
            for n, m, biased in (
                (1, 1, ""),
                (31, 1, "1"),
                (64, 1, "2"),
                (600, 1, "12"),
                (33, 3, "12"),
            ):
                data = positive if n == 1 else None
                w1, w2 = (Operand((n, i * k), t, data, role="weight") for i in (1, 3))
                x1, x2, r = (Operand((m, i), data=data) for i in (k, 3 * k, n))
                b = Operand((n,), data=data, role="weight")
                biases = (b if i in biased else None for i in "12")
                note = f"{t} {n}x{k} and {3 * k} by {m}, biases {biased or 'none'}"
                yield Case((w1, x1, w2, x2, r, *biases), note=note)
        for types in (("q4_K", "q6_K"), ("q8_0", "q4_0"), ("f16", "bf16"), ("f16", "q4_0")):
            w1, w2 = (Operand((70, 2048), t, role="weight") for t in types)
            x, r = Operand((1, 2048)), Operand((1, 70))
            yield Case((w1, x, w2, x, r), note=" and ".join(types))
