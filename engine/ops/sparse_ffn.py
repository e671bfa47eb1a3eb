"""sparse_ffn: a ReLU feed-forward layer with a gate or without, of which only the active neurons
are read."""

from __future__ import annotations

import math
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
    relu,
)


class SparseFfn(OpSpec):
    name = "sparse_ffn"
    doc = (
        "axpy_sparse(w_down_t, relu(gate) * up) with gate and up by mul_mat_sparse, all three over "
        "the same neurons; relu(up) when relu_up is 1. Without w_gate axpy_sparse(w_down_t, "
        "relu(up + b_up)). relu(x) is x where it is above cut, else 0. Kernels may leave out the "
        "rows of up where relu(gate) is 0 and those of down where the product is: without idx "
        "this computes the layer exactly and still reads only part of it."
    )
    operands = (
        "w_gate? any float or quantized [n_rows, k]",
        "w_up any float or quantized [n_rows, k]",
        "w_down_t any float or quantized [n_rows, n_embd]",
        "x f32 [m, k]",
        *NEURONS,
        "b_up? f32 [n_ff], without w_gate",
    )
    rows_of = 3
    weights = (0, 1, 2)
    params = (
        Param("threshold", "f", 0.0),
        Param("relu_up", "i", 0),
        Param("cut", "f", 0.0, doc="0 or more"),
    )
    cost = (
        "m n_rows (4 k + 2 n_embd + 2), without w_gate (2 k + 2 n_embd + 2), as if all were active"
    )
    tolerance = 5e-4
    fused_from = ("mul_mat_sparse", "reglu", "relu", "fatrelu", "axpy_sparse")

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, tuple[int, ...]]:
        gate, up, down, x, *which, bias = pad_srcs(srcs, 8)
        for w, name in ((gate, "w_gate"), (up, "w_up"), (down, "w_down_t")):
            if w is not None:
                check_weight(self, w, name, *srcs)
        check_rows(self, x, "x", *srcs)
        if (gate is not None and gate.shape != up.shape) or up.shape[0] != down.shape[0]:
            raise self.fail("w_gate and w_up must have one shape, w_down_t as many rows", *srcs)
        if up.shape[1] != x.shape[1]:
            raise self.fail(f"inner lengths {up.shape[1]} and {x.shape[1]} differ", *srcs)
        if params["relu_up"] not in (0, 1):
            raise self.fail(f"relu_up={params['relu_up']}, expected 0 or 1", *srcs)
        if gate is None and params["relu_up"]:
            raise self.fail("relu_up is for layers with w_gate", *srcs)
        if not 0 <= params["cut"] < math.inf:
            raise self.fail(f"cut={params['cut']}, expected 0 or more", *srcs)
        n_ff = None
        if bias is not None:
            if gate is not None:
                raise self.fail("b_up is for layers without w_gate", *srcs)
            if bias.dtype is not F32 or len(bias.shape) != 1 or not bias.is_contiguous:
                raise self.fail("b_up must be dense f32 [n_ff]", *srcs)
            n_ff = bias.shape[0]
        check_neurons(self, up.shape[0], x.shape[0], n_ff, tuple(which), *srcs)
        return F32, (x.shape[0], down.shape[1])

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        gate, up, down, x, *which, bias = pad_srcs(srcs, 8)
        n_ff = int(neurons_of_rows(len(up), which[1]).max()) + 1 if bias is None else len(bias)
        given = {"threshold": params["threshold"]}
        product = op_spec("mul_mat_sparse").reference
        u = product(up, x, *which, n_ff=n_ff, **given)
        if gate is None:
            h = relu(u if bias is None else u + bias, params["cut"])
        else:
            g = product(gate, x, *which, n_ff=n_ff, **given)
            h = relu(g, params["cut"]) * (relu(u, params["cut"]) if params["relu_up"] else u)
        return op_spec("axpy_sparse").reference(down, h, *which, **given)

    def flops(self, out: Tensor) -> int:
        gate, up, down, x = out.srcs[:4]
        assert up is not None and down is not None and x is not None
        products = 4 if gate is not None else 2
        return x.shape[0] * (products * up.size + 2 * down.size + 2 * up.shape[0])

    def cases(self) -> Iterator[Case]:
        def make(t: str, k: int, n_rows: int, n_ff: int, m: int, data: Any) -> Any:
            w = Operand((n_rows, k), t, data or scaled, role="weight")
            return (w, w, w, Operand((m, k), data=data)), {}

        def ungated(t: str, k: int, n_rows: int, n_ff: int, m: int, data: Any) -> Any:
            (_, *rest), params = make(t, k, n_rows, n_ff, m, data)
            return (None, *rest), params

        yield from neuron_cases(make)
        for i, c in enumerate(neuron_cases(ungated)):
            yield _biased(c) if i % 2 else c
        gate = Operand((37, 256), "q4_K", scaled, role="weight")
        up = Operand((37, 256), "f16", scaled, role="weight")
        down = Operand((37, 96), "q8_0", scaled, role="weight")
        x = Operand((2, 256))
        idx = Operand((2, 37))
        yield Case((gate, up, down, x, idx), note="three types")
        yield Case((gate, up, down, x, idx), {"relu_up": 1}, note="relu on both")
        yield Case((gate, gate, down, x), {"relu_up": 1}, note="relu on both, no idx")
        # What rounding carries over the cut jumps by as much: little, where x is quantized.
        for t, cut in (("f32", {"cut": 0.3}), ("q4_0", {"cut": 0.01})):
            w = Operand((70, 96), t, scaled, role="weight")
            for m in (1, 3, 101):
                x, idx = Operand((m, 96)), Operand((m, 70))
                for note, first in (("gated", w), ("ungated", None)):
                    yield Case((first, w, w, x, idx), cut, note=f"{t} cut {note} by {m}")
                    yield Case((first, w, w, x), cut, note=f"{t} cut {note} by {m}, no idx")
            yield Case((w, w, w, x, idx), {**cut, "relu_up": 1}, note=f"{t} cut both")
            yield Case(
                (w, w, w, Operand((2, 96))), {**cut, "relu_up": 1}, note=f"{t} cut both, few"
            )
        yield Case(
            (None, gate, down, Operand((2, 256)), Operand((2, 37))), note="two types, ungated"
        )
        nan = Operand((2, 67), data=lambda rng, shape: [[np.nan], [1.0]] * rng.uniform(1, 2, shape))
        for t in ("f32", "f16"):
            w = Operand((37, 67), t, scaled, role="weight")
            for note, first in (("", w), (", ungated", None)):
                yield Case((first, w, w, nan), note=f"{t} NaN{note}",
                           tolerance=1e-7 if t == "f32" else None)  # fmt: skip
        w = Operand((33, 64), "q8_0", scaled, pad=(1, 32))
        x, idx = Operand((3, 64), pad=(1, 7)), Operand((3, 33), pad=(1, 3))
        for note, first in (("", w), (", ungated", None)):
            yield Case((first, w, w, x, idx), note=f"views{note}")


def _biased(c: Case) -> Case:
    """A case without a gate with a bias, where it says how many neurons there are."""
    _, up, _, _, idx, bucket, gpu_idx = pad_srcs(c.srcs, 7)
    told = idx or gpu_idx
    if told is None and bucket is not None:
        return c
    n_ff = told.shape[-1] if told is not None else up.shape[0]
    srcs = (*pad_srcs(c.srcs, 7), Operand((n_ff,)))
    return Case(srcs, c.params, f"{c.note}, bias", c.tolerance)
