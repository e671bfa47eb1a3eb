"""mul_mat_id_glu: gate and up of a layer's experts, and the gated activation over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape, Tensor, op_spec
from ._common import FLOATS, GRID_QUANTS, QUANTS, TABLE_QUANTS, aligned_length, block_of, scaled
from .mul_mat_id import bytes_named, ids_operand, infer_mul_mat_id

ACTS = ("swiglu", "geglu", "swiglu_clamped")


class MulMatIdGlu(OpSpec):
    name = "mul_mat_id_glu"
    doc = (
        "act(mul_mat_id(w_gate, x, ids, b_gate), mul_mat_id(w_up, x, ids, b_up)), act one of "
        "swiglu, geglu and swiglu_clamped; an id outside [0, E) gives zeros."
    )
    operands = (
        "w_gate any float or quantized [E, n, k]",
        "w_up the same type and shape",
        "x f32 [m, k] or [m, u, k]",
        "ids i32 [m, u]",
        "b_gate? f32 [E, n]",
        "b_up? f32 [E, n]",
    )
    params = (
        Param("act", "i", None, ACTS),
        Param("alpha", "f", 1.702, doc="of swiglu_clamped"),
        Param("limit", "f", 7.0, doc="of swiglu_clamped"),
    )
    rows_of = 2
    weights = (0, 1)
    across = (0, 1, 4, 5)
    cost = "4 m u n k + 8 m u n"
    tolerance = 2 * 5e-4  # the error of either product is one of the result
    fused_from = ("mul_mat_id", "swiglu", "geglu", "swiglu_clamped")
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        gate, up, x, ids, b_gate, b_up = (*srcs, None, None)[:6]
        if (gate.dtype, gate.shape) != (up.dtype, up.shape):
            raise self.fail("w_gate and w_up must have one type and shape", *srcs)
        if (b_gate is None) != (b_up is None):
            raise self.fail("both have a bias, or none", *srcs)
        infer_mul_mat_id(self, srcs, up, x, ids, b_up)
        return F32, infer_mul_mat_id(self, srcs, gate, x, ids, b_gate)

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        gate, up, x, ids, b_gate, b_up = (*srcs, None, None)[:6]
        product, act = op_spec("mul_mat_id"), op_spec(params["act"])
        both = (product.reference(w, x, ids, b) for w, b in ((gate, b_gate), (up, b_up)))
        return act.reference(*both, **{p.name: params[p.name] for p in act.params})

    def flops(self, out: Tensor) -> int:
        return (4 * out.live_srcs()[0].shape[-1] + 8) * out.size

    def bytes(self, out: Tensor) -> int:
        gate, up, *others = out.live_srcs()
        weights = bytes_named(gate, others[1]) + bytes_named(up, others[1])
        return out.nbytes + weights + sum(t.nbytes for t in others)

    def cases(self) -> Iterator[Case]:
        def case(
            t: str,
            sizes: tuple[int, ...],
            k: int,
            act: str,
            *,
            own: bool = False,
            bias: bool = False,
            data: Any = None,
            params: dict[str, float] | None = None,
        ) -> Case:
            """sizes: E, n, m, u. own: a row of x for each id."""
            e, n, m, u = sizes
            srcs = [Operand((e, n, k), t, scaled, role="weight") for _ in range(2)]
            srcs.append(Operand((m, u, k) if own else (m, k)))
            srcs.append(ids_operand(e, m, u, data))
            if bias:
                srcs += [Operand((e, n), role="weight") for _ in range(2)]
            note = f"{t} {act} {e} experts {n}x{k}, {m} rows of {u}"
            tolerance = 1e-6 if t == "f32" else None
            return Case(tuple(srcs), {"act": act, **(params or {})}, note, tolerance)

        for t in FLOATS + QUANTS:
            k = 172 if block_of(t) == 1 else 2 * block_of(t)
            yield case(t, (4, 33, 1, 2), k, "swiglu")
            yield case(t, (8, 48, 31, 3), k, "swiglu_clamped", bias=True)
            yield case(t, (5, 33, 2, 3), aligned_length(t, k), "swiglu_clamped", bias=True)
        for t in (*TABLE_QUANTS[:3], GRID_QUANTS[0]):
            yield case(t, (8, 48, 1, 3), aligned_length(t, 512), "geglu")
            yield case(t, (3, 40, 70, 2), 256, "swiglu")
        yield case("q4_0", (8, 48, 20, 3), 64, "geglu", own=True)
        # Rows longer than a chunk, and more of them than a block has warps and stages.
        yield case("q4_0", (5, 2001, 1, 4), 2304, "swiglu")
        yield case("q4_0", (4, 230, 16, 4), 256, "swiglu", own=True)
        yield case("mxfp4", (4, 90, 16, 4), 2560, "swiglu_clamped", bias=True)
        yield case("q8_0", (8, 48, 1, 3), 64, "swiglu", own=True)
        yield case("q4_0", (2, 16, 100, 1), 64, "swiglu")
        yield case("q8_0", (3, 16, 3, 1), 32, "swiglu", own=True)
        yield case("q4_0", (3, 16, 1, 3), 64, "swiglu", data=[[1, 1, 0]])
        outside = [[0, -1], [9, 2], [-1, -1]]
        yield case("q8_0", (3, 17, 3, 2), 256, "geglu", data=outside)
        clamped = {"alpha": 1.5, "limit": 1.0}
        yield case(
            "f16", (3, 16, 3, 2), 32, "swiglu_clamped", data=outside, bias=True, params=clamped
        )
        srcs = (
            *(Operand((4, 24, 64), "q8_0", scaled, role="weight") for _ in range(2)),
            Operand((5, 64), pad=(1, 9)),
            Operand((5, 2), "i32", [[0, 1], [1, 2], [2, 3], [3, 0], [1, 3]], pad=(0, 3)),
        )
        yield Case(srcs, {"act": "swiglu"}, note="views")
