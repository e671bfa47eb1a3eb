"""mul_mat_sparse: the rows of a weight that belong to active neurons, times activations."""

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


class MulMatSparse(OpSpec):
    name = "mul_mat_sparse"
    doc = (
        "result[t, j] = w[r] . x[t] for the row r of neuron j = gpu_bucket[r] (j = r without a "
        "bucket) if the neuron is active, 0 everywhere else. Inactive: idx[t, j] < threshold (NaN "
        "is not), or gpu_idx[j] != 0. Without idx all are active."
    )
    operands = ("w any float or quantized [n_rows, k]", "x f32 [m, k]", *NEURONS)
    rows_of = 1
    weights = (0,)
    params = (
        Param("threshold", "f", 0.0),
        Param("n_ff", "i", 0, doc="neurons, where neither idx nor gpu_idx says; 0: n_rows"),
    )
    cost = "2 m n_rows k, as if all were active"
    tolerance = 5e-4

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, tuple[int, ...]]:
        w, x, *which = pad_srcs(srcs, 5)
        check_weight(self, w, "w", *srcs)
        check_rows(self, x, "x", *srcs)
        if w.shape[1] != x.shape[1]:
            raise self.fail(f"inner lengths {w.shape[1]} and {x.shape[1]} differ", *srcs)
        m, n_ff = x.shape[0], params["n_ff"] or None
        return F32, (m, check_neurons(self, w.shape[0], m, n_ff, tuple(which), *srcs))

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        w, x, idx, bucket, gpu_idx = pad_srcs(srcs, 5)
        known = [t.shape[-1] for t in (idx, gpu_idx) if t is not None]
        n_ff = (known or [params["n_ff"] or len(w)])[0]
        result = np.zeros((len(x), n_ff))
        result[:, neurons_of_rows(len(w), bucket)] = x.astype(np.float64) @ w.astype(np.float64).T
        active = active_neurons(result.shape, params["threshold"], idx, gpu_idx)
        return np.where(active, result, 0).astype(np.float32)

    def flops(self, out: Tensor) -> int:
        w, x = out.live_srcs()[:2]
        return 2 * x.shape[0] * w.size

    def cases(self) -> Iterator[Case]:
        def make(t: str, k: int, n_rows: int, n_ff: int, m: int, data: Any) -> Any:
            w = Operand((n_rows, k), t, data or scaled, role="weight")
            return (w, Operand((m, k), data=data)), {"n_ff": n_ff}

        yield from neuron_cases(make)
        for t, pad in (("f16", (1, 5)), ("q8_0", (1, 32))):
            w = Operand((33, 64), t, scaled, pad=pad)
            x, idx = Operand((3, 64), pad=(1, 7)), Operand((3, 33), pad=(1, 3))
            yield Case((w, x, idx), note=f"{t} views")
