"""mul_mat_swiglu: the first half of a gated feed-forward block in one op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Shape, Tensor, op_spec
from ._common import FLOATS, QUANTS, block_of, positive, scaled
from .mul_mat import infer_mul_mat


class MulMatSwiglu(OpSpec):
    name = "mul_mat_swiglu"
    doc = "silu(mul_mat(w_gate, x)) * mul_mat(w_up, x)."
    operands = (
        "w_gate any float or quantized [n, k]",
        "w_up any float or quantized [n, k]",
        "x f32 [.., m, k]",
    )
    rows_of = 2
    weights = (0, 1)
    by_column = (0, 1)
    cost = "4 m n k + 5 m n"
    tolerance = 2 * 5e-4  # the error of either product is one of the result
    fused_from = ("mul_mat", "swiglu")

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        gate, up, x = srcs
        if gate.shape != up.shape or len(gate.shape) != 2:
            raise self.fail("w_gate and w_up must have one shape [n, k]", *srcs)
        shape = infer_mul_mat(self, gate, x, up)
        infer_mul_mat(self, up, x, gate)
        return F32, shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        gate, up, x = srcs
        mul_mat, swiglu = op_spec("mul_mat"), op_spec("swiglu")
        return swiglu.reference(mul_mat.reference(gate, x), mul_mat.reference(up, x))

    def flops(self, out: Tensor) -> int:
        return out.size * (4 * out.live_srcs()[0].shape[-1] + 5)

    def cases(self) -> Iterator[Case]:
        for t in FLOATS + QUANTS:
            k = 2 * block_of(t) if block_of(t) > 1 else 31
            tolerance = 1e-7 if t == "f32" else None
            for n, m in ((1, 1), (33, 1), (31, 3), (172, 31)):
                data = positive if n * m < 31 else None
                w = Operand((n, k), t, data or scaled, role="weight")
                x = Operand((m, k), data=data)
                yield Case((w, w, x), {}, f"{t} {n}x{k} by {m}", tolerance)
            for m in (20, 70):
                gate, up = (Operand((70, 512), t, scaled, role="weight") for _ in range(2))
                yield Case((gate, up, Operand((m, 512))), {}, f"{t} 70x512 by {m}", tolerance)
        for t in ("iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "iq2_xs", "iq1_m"):
            gate, up = (Operand((70, 512), t, scaled, role="weight") for _ in range(2))
            for m in (1, 20, 70):
                yield Case((gate, up, Operand((m, 512))), note=f"{t} 70x512 by {m}")
        gate = Operand((31, 256), "q4_K", scaled, role="weight")
        up = Operand((31, 256), "q6_K", scaled, role="weight")
        yield Case((gate, up, Operand((3, 256))), note="q4_K and q6_K")
        w = Operand((5, 32), "q8_0", scaled, role="weight")
        yield Case((w, w, Operand((2, 3, 32), pad=(1, 1, 7))), note="3d view")
