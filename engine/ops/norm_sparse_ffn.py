"""norm_sparse_ffn: a sparse feed-forward layer with its norm and its residual."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from ..graph import Case, DType, Operand, OpSpec, Param, Tensor, op_spec
from ._common import scaled
from ._sparse import NEURONS, check_rows, neuron_cases, pad_srcs
from .norm_mul_mat import check_norm
from .rms_norm import RmsNorm
from .sparse_ffn import SparseFfn


class NormSparseFfn(OpSpec):
    name = "norm_sparse_ffn"
    doc = "r + sparse_ffn(w_gate, w_up, w_down_t, rms_norm_mul(x, norm), idx, gpu_bucket, gpu_idx)."
    operands: ClassVar[tuple[str, ...]] = (
        "x f32 [m, k]",
        "norm f32 [k]",
        "w_gate any float or quantized [n_rows, k]",
        *SparseFfn.operands[1:3],
        "r f32 [m, n_embd]",
        *NEURONS,
    )
    rows_of = 0
    weights = (2, 3, 4)
    params: ClassVar[tuple[Param, ...]] = (*RmsNorm.params, *SparseFfn.params)
    cost = "as sparse_ffn, and 5 m k + m n_embd"
    tolerance = 5e-4
    fused_from: ClassVar[tuple[str, ...]] = ("rms_norm_mul", "sparse_ffn", "add")
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, tuple[int, ...]]:
        x, _, *weights, r = srcs[:6]
        check_norm(self, *srcs)
        check_rows(self, r, "r", *srcs)
        own = {p.name: params[p.name] for p in SparseFfn.params}
        dtype, shape = op_spec("sparse_ffn").infer(*weights, x, *srcs[6:], **own)
        if r.shape != shape:
            raise self.fail(f"r must have the result's shape {list(shape)}", *srcs)
        return dtype, tuple(shape)

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        x, norm, gate, up, down, r, *which = pad_srcs(srcs, 9)
        h = op_spec("rms_norm_mul").reference(x, norm, eps=params["eps"])
        own = {p.name: params[p.name] for p in SparseFfn.params}
        return r + op_spec("sparse_ffn").reference(gate, up, down, h, *which, **own)

    def flops(self, out: Tensor) -> int:
        x, _, gate, _, down, r = out.live_srcs()[:6]
        layer = x.shape[0] * (4 * gate.size + 2 * down.size + 2 * gate.shape[0])
        return layer + 5 * x.size + r.size

    def cases(self) -> Iterator[Case]:
        def make(t: str, k: int, n_rows: int, n_ff: int, m: int, data: Any) -> Any:
            w = Operand((n_rows, k), t, data or scaled, role="weight")
            x, norm = Operand((m, k), data=data), Operand((k,), data=data, role="weight")
            return (x, norm, w, w, w, Operand((m, k), data=data)), {"eps": 1e-5}

        yield from neuron_cases(make)
        x = Operand((2, 256), data=lambda rng, s: rng.standard_normal(s) * 1e-3)
        norm, r = Operand((256,), role="weight"), Operand((2, 96))
        gate = Operand((37, 256), "q4_K", scaled, role="weight")
        down = Operand((37, 96), "q8_0", scaled, role="weight")
        params = {"eps": 1e-6, "relu_up": 1}
        yield Case((x, norm, gate, gate, down, r, Operand((2, 37))), params, "eps counts")
