"""mul_mat_add: a product and the residual or bias added to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Shape, Tensor, op_spec
from ._common import FLOATS, QUANTS, block_of, rows_dense
from .mul_mat import infer_mul_mat


class MulMatAdd(OpSpec):
    name = "mul_mat_add"
    doc = "mul_mat(w, x) + r, with r a residual of the result's shape or a bias [n]."
    operands = (
        "w any float or quantized [b3?, b2?, n, k]",
        "x f32 [c3?, c2?, m, k]",
        "r f32 [.., m, n] or [n]",
    )
    rows_of = 1
    weights = (0,)
    by_column = (0, 2)
    cost = "2 m n k + m n a batch"
    tolerance = 5e-4
    fused_from = ("mul_mat", "add")

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        w, x, r = srcs
        shape = infer_mul_mat(self, w, x, r)
        if r.dtype is not F32 or r.shape not in (shape, shape[-1:]) or not rows_dense(r):
            raise self.fail(f"r must be f32 {list(shape)} or {list(shape[-1:])}", *srcs)
        return F32, shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        w, x, r = srcs
        return op_spec("add").reference(op_spec("mul_mat").reference(w, x), r)

    def flops(self, out: Tensor) -> int:
        return out.size * (2 * out.live_srcs()[0].shape[-1] + 1)

    def cases(self) -> Iterator[Case]:
        for t in FLOATS + QUANTS:
            k = 2 * block_of(t) if block_of(t) > 1 else 31
            tolerance = 1e-7 if t == "f32" else None
            w = Operand((33, k), t, role="weight")
            for m in (1, 3, 31):
                for r in (Operand((m, 33)), Operand((33,))):
                    kind = "bias" if len(r.shape) == 1 else "residual"
                    yield Case((w, Operand((m, k)), r), {}, f"{t} by {m}, {kind}", tolerance)
            for m, r in ((20, Operand((20, 70))), (70, Operand((70,)))):
                w = Operand((70, 512), t, role="weight")
                yield Case((w, Operand((m, 512)), r), {}, f"{t} 70x512 by {m}", tolerance)
        for t in ("iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "iq3_s", "iq1_s"):
            w = Operand((70, 512), t, role="weight")
            for m in (1, 20, 70):
                yield Case((w, Operand((m, 512)), Operand((m, 70))), note=f"{t} 70x512 by {m}")
        r = Operand((2, 2, 3, 7), pad=(0, 1, 1, 5))
        yield Case((Operand((2, 7, 32), "q8_0"), Operand((2, 2, 3, 32)), r), note="batch, view")
        # With k = 1 the product does not hide a wrong r.
        yield Case((Operand((1, 1), role="weight"), Operand((1, 1)), Operand((1, 1))), note="one",
                   tolerance=1e-7)  # fmt: skip
