"""sparse_ffn: a gated ReLU feed-forward layer, of which only the active neurons are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Tensor, op_spec
from ._common import scaled
from ._sparse import (
    NEURONS,
    check_neurons,
    check_rows,
    check_weight,
    neuron_cases,
    neurons_of_rows,
    pad_srcs,
)


class SparseFfn(OpSpec):
    name = "sparse_ffn"
    doc = (
        "axpy_sparse(w_down_t, relu(gate) * up) with gate and up by mul_mat_sparse, all three over "
        "the same neurons; relu(up) when relu_up is 1. Kernels may leave out the rows of up where "
        "relu(gate) is 0 and those of down where the product is: without idx this computes the "
        "layer exactly and still reads only part of it."
    )
    operands = (
        "w_gate any float or quantized [n_rows, k]",
        "w_up any float or quantized [n_rows, k]",
        "w_down_t any float or quantized [n_rows, n_embd]",
        "x f32 [m, k]",
        *NEURONS,
    )
    rows_of = 3
    weights = (0, 1, 2)
    params = (Param("threshold", "f", 0.0), Param("relu_up", "i", 0))
    cost = "m n_rows (4 k + 2 n_embd + 2), as if all were active"
    tolerance = 5e-4
    fused_from = ("mul_mat_sparse", "reglu", "axpy_sparse")

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, tuple[int, ...]]:
        gate, up, down, x, *which = pad_srcs(srcs, 7)
        for w, name in ((gate, "w_gate"), (up, "w_up"), (down, "w_down_t")):
            check_weight(self, w, name, *srcs)
        check_rows(self, x, "x", *srcs)
        if gate.shape != up.shape or gate.shape[0] != down.shape[0]:
            raise self.fail("w_gate and w_up must have one shape, w_down_t as many rows", *srcs)
        if gate.shape[1] != x.shape[1]:
            raise self.fail(f"inner lengths {gate.shape[1]} and {x.shape[1]} differ", *srcs)
        if params["relu_up"] not in (0, 1):
            raise self.fail(f"relu_up={params['relu_up']}, expected 0 or 1", *srcs)
        check_neurons(self, gate.shape[0], x.shape[0], None, tuple(which), *srcs)
        return F32, (x.shape[0], down.shape[1])

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        gate, up, down, x, *which = pad_srcs(srcs, 7)
        n_ff = int(neurons_of_rows(len(gate), which[1]).max()) + 1
        given = {"threshold": params["threshold"]}
        product = op_spec("mul_mat_sparse").reference
        g, u = (product(w, x, *which, n_ff=n_ff, **given) for w in (gate, up))
        h = op_spec("reglu").reference(g, np.maximum(u, 0) if params["relu_up"] else u)
        return op_spec("axpy_sparse").reference(down, h, *which, **given)

    def flops(self, out: Tensor) -> int:
        gate, _, down, x = out.live_srcs()[:4]
        return x.shape[0] * (4 * gate.size + 2 * down.size + 2 * gate.shape[0])

    def cases(self) -> Iterator[Case]:
        def make(t: str, k: int, n_rows: int, n_ff: int, m: int, data: Any) -> Any:
            w = Operand((n_rows, k), t, data or scaled, role="weight")
            return (w, w, w, Operand((m, k), data=data)), {}

        yield from neuron_cases(make)
        gate = Operand((37, 256), "q4_K", scaled, role="weight")
        up = Operand((37, 256), "f16", scaled, role="weight")
        down = Operand((37, 96), "q8_0", scaled, role="weight")
        x = Operand((2, 256))
        yield Case((gate, up, down, x, Operand((2, 37))), note="three types")
        yield Case((gate, up, down, x, Operand((2, 37))), {"relu_up": 1}, note="relu on both")
        yield Case((gate, gate, down, x), {"relu_up": 1}, note="relu on both, no idx")
        nan = Operand((2, 67), data=lambda rng, shape: [[np.nan], [1.0]] * rng.uniform(1, 2, shape))
        for t in ("f32", "f16"):
            w = Operand((37, 67), t, scaled, role="weight")
            yield Case((w, w, w, nan), note=f"{t} NaN", tolerance=1e-7 if t == "f32" else None)
        w = Operand((33, 64), "q8_0", scaled, pad=(1, 32))
        x, idx = Operand((3, 64), pad=(1, 7)), Operand((3, 33), pad=(1, 3))
        yield Case((w, w, w, x, idx), note="views")
