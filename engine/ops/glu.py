"""swiglu, geglu, reglu, swiglu_clamped: gated activations (Shazeer 2020), of two tensors or of the
halves of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape, Tensor
from ._common import gelu, rows_dense, sigmoid, silu


class _Glu(OpSpec):
    operands = ("gate f32 [.., n], or gate and up side by side [.., 2n]", "up? f32 [.., n]")
    rows_of = 0
    in_place = (0, 1)
    per_element = 5
    edges: tuple[float, ...] = (-0.0, 0.0, 80.0, -80.0, 1e4, -1e4)

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        gate, up = (*srcs, None)[:2]
        if not gate.shape or any(s is not None and s.dtype is not F32 for s in srcs):
            raise self.fail("operands must be f32", *srcs)
        if not all(rows_dense(s) for s in (gate, up) if s is not None):
            raise self.fail("rows must be dense; use cont", *srcs)
        if up is not None:
            if up.shape != gate.shape:
                raise self.fail("gate and up must have one shape", *srcs)
            return F32, gate.shape
        if gate.shape[-1] % 2:
            raise self.fail("a lone operand holds gate and up, so its last length is even", *srcs)
        return F32, (*gate.shape[:-1], gate.shape[-1] // 2)

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        gate, up = (*srcs, None)[:2]
        if up is None:
            gate, up = np.split(gate, 2, axis=-1)
        return (self.act(gate.astype(np.float64)) * up).astype(np.float32)

    def act(self, x: np.ndarray) -> np.ndarray:
        """The activation of the gate, on float64."""
        raise NotImplementedError

    def flops(self, out: Tensor) -> int:
        return self.per_element * out.size

    def cases(self) -> Iterator[Case]:
        for shape in ((1,), (3, 31), (5, 172), (2, 3, 5, 31), (3, 64)):
            yield Case((Operand(shape), Operand(shape)), note="two")
            both = (*shape[:-1], 2 * shape[-1])
            yield Case((Operand(both),), note="one")
        yield Case((Operand((3, 31), pad=(1, 5)), Operand((3, 31), pad=(2, 7))), note="views")
        yield Case((Operand((3, 62), pad=(1, 5)),), note="one, view")
        swap = (1, 0, 2)
        yield Case((Operand((3, 2, 31), permute=swap), Operand((3, 2, 31))), note="permuted")
        edges = Operand((1, len(self.edges)), data=[self.edges])
        yield Case((edges, Operand(edges.shape)), note="edges")


class Swiglu(_Glu):
    name = "swiglu"
    doc = "silu(gate) * up."
    cost = "5 an element"

    def act(self, x: np.ndarray) -> np.ndarray:
        return silu(x)


class Geglu(_Glu):
    name = "geglu"
    doc = "gelu(gate) * up, with the tanh form of gelu."
    cost = "9 an element"
    per_element = 9

    def act(self, x: np.ndarray) -> np.ndarray:
        return gelu(x)


class Reglu(_Glu):
    name = "reglu"
    doc = "relu(gate) * up; a NaN of the gate stays one."
    edges = (*_Glu.edges, np.nan, -np.nan)
    cost = "2 an element"
    per_element = 2

    def act(self, x: np.ndarray) -> np.ndarray:
        return np.maximum(x, 0)


class SwigluClamped(_Glu):
    name = "swiglu_clamped"
    doc = (
        "g sigmoid(alpha g) (u + 1) with g = min(gate, limit), u = clamp(up, -limit, limit) "
        "(OpenAI 2025, gpt-oss)."
    )
    params = (Param("alpha", "f", 1.702), Param("limit", "f", 7.0))
    cost = "8 an element"
    per_element = 8

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        gate, up = (*srcs, None)[:2]
        if up is None:
            gate, up = np.split(gate, 2, axis=-1)
        limit = params["limit"]
        g = np.minimum(gate.astype(np.float64), limit)
        u = np.clip(up.astype(np.float64), -limit, limit)
        return (g * sigmoid(params["alpha"] * g) * (u + 1)).astype(np.float32)

    def cases(self) -> Iterator[Case]:
        yield from super().cases()
        wide = lambda rng, shape: rng.standard_normal(shape) * 9  # noqa: E731
        srcs = Operand((5, 172), data=wide), Operand((5, 172), data=wide)
        yield Case(srcs, {"alpha": 1.5, "limit": 4.0}, "numbers of its own")
