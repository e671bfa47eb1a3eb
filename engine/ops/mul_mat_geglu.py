"""mul_mat_geglu: as mul_mat_swiglu, with GELU in the gate (Gemma)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import Case, Operand, op_spec
from ._common import FLOATS, QUANTS, block_of, positive, scaled
from .mul_mat_swiglu import MulMatSwiglu


class MulMatGeglu(MulMatSwiglu):
    name = "mul_mat_geglu"
    doc = "gelu(mul_mat(w_gate, x)) * mul_mat(w_up, x), with the tanh form of gelu."
    cost = "4 m n k + 9 m n"
    fused_from = ("mul_mat", "geglu")
    optional = True

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        gate, up, x = srcs
        mul_mat, geglu = op_spec("mul_mat"), op_spec("geglu")
        return geglu.reference(mul_mat.reference(gate, x), mul_mat.reference(up, x))

    def cases(self) -> Iterator[Case]:
        for t in FLOATS + QUANTS:
            k = 2 * block_of(t) if block_of(t) > 1 else 31
            for n, m in ((1, 1), (33, 1), (31, 3), (70, 20)):
                data = positive if n * m == 1 else None
                gate, up = (Operand((n, k), t, data or scaled, role="weight") for _ in range(2))
                tolerance = 1e-7 if t == "f32" else None
                yield Case((gate, up, Operand((m, k), data=data)), {}, f"{t} {n}x{k} by {m}",
                           tolerance)  # fmt: skip
