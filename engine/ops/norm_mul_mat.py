"""norm_mul_mat, norm_mul_mat_swiglu and norm_mul_mat_geglu: a decoder block's norm and the products
that read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape, Tensor, op_spec
from ._common import FLOATS, QUANTS, block_of, positive, scaled
from .mul_mat import infer_mul_mat
from .rms_norm import RmsNorm


def check_norm(spec: OpSpec, *srcs: Any) -> None:
    """x and its norm's weight, the first two operands, fit; raises `spec`'s ShapeError."""
    x, norm = srcs[:2]
    if len(x.shape) < 2 or norm.dtype is not F32 or norm.shape != x.shape[-1:]:
        raise spec.fail("norm must be f32 [k] for x f32 [.., m, k]", *srcs)


class NormMulMat(OpSpec):
    name = "norm_mul_mat"
    doc = "mul_mat(w, rms_norm_mul(x, norm))."
    operands: ClassVar[tuple[str, ...]] = (
        "x f32 [.., m, k]",
        "norm f32 [k]",
        "w any float or quantized [n, k]",
    )
    rows_of = 0
    weights: ClassVar[tuple[int, ...]] = (2,)
    by_column: ClassVar[tuple[int, ...]] = (2,)
    params: ClassVar[tuple[Param, ...]] = RmsNorm.params
    cost = "2 m n k + 5 m k"
    tolerance = 5e-4
    fused_from: ClassVar[tuple[str, ...]] = ("rms_norm_mul", "mul_mat")
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        x, _, *weights = srcs
        check_norm(self, *srcs)
        return F32, [infer_mul_mat(self, w, x) for w in weights][0]

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        x, norm, *weights = srcs
        h = op_spec("rms_norm_mul").reference(x, norm, **params)
        return op_spec(self.fused_from[1]).reference(*weights, h)

    def flops(self, out: Tensor) -> int:
        x, _, *weights = out.live_srcs()
        return 5 * x.size + len(weights) * 2 * out.size * x.shape[-1]

    def cases(self) -> Iterator[Case]:
        yield from norm_cases(1, FLOATS + QUANTS + ("iq4_nl", "iq4_xs", "mxfp4", "nvfp4"))


class NormMulMatSwiglu(NormMulMat):
    name = "norm_mul_mat_swiglu"
    doc = "mul_mat_swiglu(w_gate, w_up, rms_norm_mul(x, norm))."
    operands: ClassVar[tuple[str, ...]] = (
        "x f32 [.., m, k]",
        "norm f32 [k]",
        "w_gate any float or quantized [n, k]",
        "w_up any float or quantized [n, k]",
    )
    weights: ClassVar[tuple[int, ...]] = (2, 3)
    by_column: ClassVar[tuple[int, ...]] = (2, 3)
    cost = "4 m n k + 5 m k"
    fused_from: ClassVar[tuple[str, ...]] = ("rms_norm_mul", "mul_mat_swiglu")

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        if srcs[2].shape != srcs[3].shape:
            raise self.fail("w_gate and w_up must have one shape [n, k]", *srcs)
        return super().infer(*srcs, **params)

    def cases(self) -> Iterator[Case]:
        yield from norm_cases(2, FLOATS + QUANTS)


class NormMulMatGeglu(NormMulMatSwiglu):
    name = "norm_mul_mat_geglu"
    doc = "mul_mat_geglu(w_gate, w_up, rms_norm_mul(x, norm))."
    tolerance = 2 * 5e-4  # the error of either product is one of the result
    fused_from = ("rms_norm_mul", "mul_mat_geglu")


def norm_cases(n_weights: int, types: tuple[str, ...]) -> Iterator[Case]:
    """Every type; lengths on both sides of the pieces kernels read rows in; odd row counts."""
    for t in types:
        ks = (31, 192) if block_of(t) == 1 else (block_of(t), 10 * block_of(t))
        for k in ks:
            for n, m in ((1, 1), (31, 1), (33, 3)):
                data = positive if n * m < 31 else None
                w = Operand((n, k), t, data or scaled, role="weight")
                srcs = (Operand((m, k), data=data), Operand((k,), data=data, role="weight"))
                yield Case((*srcs, *(w,) * n_weights), {"eps": 1e-5}, f"{t} {n}x{k} by {m}")
    x = Operand((1, 4160), data=lambda rng, s: rng.standard_normal(s) * 1e-3)
    w = Operand((172, 4160), "q8_0", scaled, role="weight")
    norm = Operand((4160,), data=positive, role="weight")
    yield Case((x, norm, *(w,) * n_weights), {"eps": 1e-6}, "eps counts")
