"""mul_mat_joined: several products of the same columns as one op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape, Tensor, op_spec
from ._common import FLOATS, QUANTS, block_of, positive
from .mul_mat import infer_mul_mat
from .norm_mul_mat import check_norm


class MulMatJoined(OpSpec):
    name = "mul_mat_joined"
    doc = (
        "h = rms_norm_mul(x, norm), or x; the result is mul_mat(w, h) for each w, the rows of one "
        "after those of the other."
    )
    operands = (
        "x f32 [m, k]",
        "norm? f32 [k]",
        "w1 any float or quantized [n1, k]",
        "w2 any float or quantized [n2, k]",
        "w3? any float or quantized [n3, k]",
        "w4? any float or quantized [n4, k]",
    )
    rows_of = 0
    weights = (2, 3, 4, 5)
    params = (Param("eps", "f", 0.0, doc="of the norm"),)
    cost = "2 m n k + 5 m k, n of all"
    tolerance = 5e-4
    fused_from = ("rms_norm_mul", "mul_mat", "concat")
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        x, norm, *weights = srcs
        if norm is not None:
            check_norm(self, *srcs)
        given = [w for w in weights if w is not None]
        shapes = [infer_mul_mat(self, w, x, *(o for o in given if o is not w)) for w in given]
        if len(x.shape) != 2 or any(len(w.shape) != 2 for w in given):
            raise self.fail("x and the weights must be matrices", *srcs)
        return F32, (x.shape[0], sum(s[1] for s in shapes))

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        x, norm, *weights = srcs
        if norm is not None:
            x = op_spec("rms_norm_mul").reference(x, norm, **params)
        product = op_spec("mul_mat").reference
        return np.concatenate([product(w, x) for w in weights if w is not None], axis=1)

    def flops(self, out: Tensor) -> int:
        x = out.srcs[0]
        assert x is not None
        return 5 * x.size + 2 * out.size * x.shape[1]

    def cases(self) -> Iterator[Case]:
        for t in FLOATS + QUANTS:
            k = {1: 192, 256: 2560}.get(block_of(t), 512)
            for rows, m in (((31, 1), 1), ((64, 2, 7), 1), ((33, 3, 5, 18), 1), ((33, 5), 3)):
                weights = [Operand((n, k), t, role="weight") for n in rows]
                for norm in (None, Operand((k,), data=positive, role="weight")):
                    kind = "plain" if norm is None else "normed"
                    yield Case((Operand((m, k)), norm, *weights), {"eps": 1e-5},
                               f"{t} {rows}x{k} by {m}, {kind}")  # fmt: skip
