"""mul_mat_id_sum: the second matrices of a layer's experts, and the sum over a token's experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Shape, Tensor, op_spec
from ._common import (
    FLOATS,
    GRID_QUANTS,
    QUANTS,
    TABLE_QUANTS,
    aligned_length,
    block_of,
    rows_dense,
    scaled,
)
from .mul_mat_id import bytes_named, ids_operand, infer_mul_mat_id


class MulMatIdSum(OpSpec):
    name = "mul_mat_id_sum"
    doc = (
        "moe_sum(mul_mat_id(w, x, ids, bias), shares) + r; an id outside [0, E) adds nothing. The "
        "sum has one order, whatever the other rows are."
    )
    operands = (
        "w any float or quantized [E, n, k]",
        "x f32 [m, u, k]",
        "ids i32 [m, u]",
        "shares f32 [m, u]",
        "bias? f32 [E, n]",
        "r? f32 [m, n]",
    )
    rows_of = 1
    weights = (0,)
    across = (0, 4)
    cost = "2 m u n k + 2 m u n"
    tolerance = 5e-4
    fused_from = ("mul_mat_id", "moe_sum", "add")
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        w, x, ids, shares, bias, r = (*srcs, None, None)[:6]
        if len(x.shape) != 3:
            raise self.fail("x must have a row for each id", *srcs)
        m, u, n = infer_mul_mat_id(self, srcs, w, x, ids, bias)
        if shares.dtype is not F32 or shares.shape != (m, u) or not rows_dense(shares):
            raise self.fail("shares must be f32 [m, u] with dense rows", *srcs)
        if r is not None and (r.dtype is not F32 or r.shape != (m, n) or not rows_dense(r)):
            raise self.fail("r must be f32 [m, n] with dense rows", *srcs)
        return F32, (m, n)

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        w, x, ids, shares, bias, r = (*srcs, None, None)[:6]
        products = op_spec("mul_mat_id").reference(w, x, ids, bias)
        out = op_spec("moe_sum").reference(products, shares)
        return out if r is None else op_spec("add").reference(out, r[: len(out)])

    def flops(self, out: Tensor) -> int:
        w, _, ids = out.live_srcs()[:3]
        return 2 * out.shape[0] * ids.shape[1] * out.shape[1] * (w.shape[-1] + 1)

    def bytes(self, out: Tensor) -> int:
        w, *others = out.live_srcs()
        return out.nbytes + bytes_named(w, others[1]) + sum(t.nbytes for t in others)

    def cases(self) -> Iterator[Case]:
        def case(
            t: str,
            sizes: tuple[int, ...],
            k: int,
            *,
            bias: bool = False,
            r: bool = False,
            data: Any = None,
            note: str = "",
        ) -> Case:
            """sizes: E, n, m, u."""
            e, n, m, u = sizes
            srcs: list[Operand | None] = [
                Operand((e, n, k), t, scaled, role="weight"),
                Operand((m, u, k)),
                ids_operand(e, m, u, data),
                Operand((m, u), data=lambda rng, s: rng.uniform(0.1, 1, s)),
                Operand((e, n), role="weight") if bias else None,
            ]
            if r:
                srcs.append(Operand((m, n)))
            elif not bias:
                srcs.pop()
            tolerance = 1e-7 if t == "f32" else None
            return Case(tuple(srcs), {}, f"{t} {e} experts {n}x{k}, {m} rows of {u} {note}",
                        tolerance)  # fmt: skip

        for t in FLOATS + QUANTS:
            k = 172 if block_of(t) == 1 else 2 * block_of(t)
            yield case(t, (4, 33, 1, 2), k)
            yield case(t, (8, 64, 3, 3), k, bias=True, r=True)
            yield case(t, (8, 48, 31, 3), k, bias=True)
            yield case(t, (3, 40, 40, 2), k, r=True)
            yield case(t, (5, 33, 2, 3), aligned_length(t, k), bias=True, r=True)
        for t in TABLE_QUANTS + GRID_QUANTS:
            yield case(t, (8, 48, 1, 3), aligned_length(t, 512), r=True)
            yield case(t, (8, 48, 31, 3), 256, bias=True)
        # Rows longer than a chunk, odd numbers of them, and more than a block has warps and stages.
        yield case("q4_0", (5, 4101, 1, 4), 768, r=True)
        yield case("mxfp4", (4, 1501, 2, 4), 2560, bias=True, r=True)
        yield case("q8_0", (3, 90, 4, 2), 4352, r=True)
        yield case("q4_K", (4, 1700, 16, 4), 256, r=True)
        yield case("q4_0", (4, 3001, 8, 4), 256, bias=True)
        yield case("q4_0", (4, 16, 3, 2), 32, note="half a unit")
        outside = [[0, -1], [9, 2], [-1, -1]]
        yield case("q8_0", (3, 17, 3, 2), 256, data=outside, bias=True, r=True, note="ids outside")
        yield case("q8_0", (3, 16, 3, 2), 64, data=outside, bias=True, r=True, note="ids outside")
        yield case("f16", (3, 16, 3, 2), 32, data=outside, bias=True, r=True, note="ids outside")
        yield case("q4_0", (3, 16, 2, 3), 256, data=[[1, 1, 0], [2, 2, 2]], note="one twice")
        srcs = (
            Operand((4, 24, 64), "q8_0", scaled, role="weight"),
            Operand((5, 2, 64), pad=(1, 2, 12)),
            Operand((5, 2), "i32", [[0, 1], [1, 2], [2, 3], [3, 0], [1, 3]], pad=(0, 3)),
            Operand((5, 2), pad=(1, 3)),
            None,
            Operand((5, 24), pad=(1, 5)),
        )
        yield Case(srcs, note="views")
