"""axpy_sparse: the rows of active neurons, weighted by their activations and added up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Tensor
from ._common import scaled
from ._sparse import (
    NEURONS,
    active_neurons,
    check_neurons,
    check_rows,
    check_weight,
    neuron_cases,
    neurons_of_rows,
    pad_srcs,
)


class AxpySparse(OpSpec):
    name = "axpy_sparse"
    doc = (
        "result[t] = the sum of h[t, b(r)] w_t[r] over the rows r of active neurons, with b(r) and "
        "activity as in mul_mat_sparse. Rows whose h is 0 may be skipped."
    )
    operands = ("w_t any float or quantized [n_rows, n_embd]", "h f32 [m, n_ff]", *NEURONS)
    rows_of = 1
    weights = (0,)
    params = (Param("threshold", "f", 0.0),)
    cost = "2 m n_rows n_embd, as if all were active"
    tolerance = 5e-4

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, tuple[int, ...]]:
        w, h, *which = pad_srcs(srcs, 5)
        check_weight(self, w, "w_t", *srcs)
        check_rows(self, h, "h", *srcs)
        check_neurons(self, w.shape[0], h.shape[0], h.shape[1], tuple(which), *srcs)
        return F32, (h.shape[0], w.shape[1])

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        w, h, idx, bucket, gpu_idx = pad_srcs(srcs, 5)
        active = active_neurons(h.shape, params["threshold"], idx, gpu_idx)
        weights = np.where(active, h.astype(np.float64), 0)[:, neurons_of_rows(len(w), bucket)]
        return (weights @ w.astype(np.float64)).astype(np.float32)

    def flops(self, out: Tensor) -> int:
        return 2 * out.shape[0] * out.live_srcs()[0].size

    def cases(self) -> Iterator[Case]:
        def make(t: str, k: int, n_rows: int, n_ff: int, m: int, data: Any) -> Any:
            w = Operand((n_rows, k), t, data or scaled, role="weight")
            return (w, Operand((m, n_ff), data=data)), {}

        yield from neuron_cases(make)
        for t, pad in (("f16", (1, 5)), ("q8_0", (1, 32))):
            w = Operand((33, 64), t, scaled, pad=pad)
            h, idx = Operand((3, 33), pad=(1, 7)), Operand((3, 33), pad=(1, 3))
            yield Case((w, h, idx), note=f"{t} views")

        def mostly_zero(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
            return np.maximum(rng.standard_normal(shape) - 1, 0)

        w = Operand((301, 192), "f16", scaled, role="weight")
        yield Case((w, Operand((2, 301), data=mostly_zero)), note="zeros in h")
