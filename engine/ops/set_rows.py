"""set_rows: write rows into a state by index. The KV-cache write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, I32, Case, DType, Operand, OpSpec, Shape, Tensor
from ._common import FLOATS, ROUNDED, block_of, rows_dense


class SetRows(OpSpec):
    name = "set_rows"
    doc = (
        "state[ids[i]] = x[i], converted to the state's type; the result is the state. Rows with "
        "an id outside [0, n) are dropped (padding); ids inside must differ."
    )
    operands = ("state any float or quantized [n, d]", "x f32 [m, d]", "ids i32 [m]")
    across = (0,)
    cost = "0 (1 an element for a quantized state)"
    writes_into = 0

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        state, x, ids = srcs
        if len(state.shape) != 2 or state.dtype.is_integer or not rows_dense(state):
            raise self.fail("the state must be [n, d] of a float or quantized type, rows dense",
                            *srcs)  # fmt: skip
        if x.dtype is not F32 or len(x.shape) != 2 or x.shape[1] != state.shape[1]:
            raise self.fail("x must be f32 [m, d] with the state's d", *srcs)
        if ids.dtype is not I32 or ids.shape != x.shape[:1]:
            raise self.fail("ids must be i32 [m], one a row of x", *srcs)
        if not (rows_dense(x) and rows_dense(ids)):
            raise self.fail("rows must be dense; use cont", *srcs)
        return state.dtype, state.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        state, x, ids = srcs
        out = state.copy()
        inside = (ids >= 0) & (ids < len(state))
        out[ids[inside]] = x[inside]
        return out

    def written(self, *srcs: Any, **params: Any) -> np.ndarray:
        state, _, ids = srcs
        return ids[(ids >= 0) & (ids < len(state))]

    def flops(self, out: Tensor) -> int:
        x = out.srcs[1]
        return x.size if x is not None and out.dtype.is_quantized else 0

    def bytes(self, out: Tensor) -> int:
        _, x, ids = out.live_srcs()
        return x.nbytes + ids.nbytes + x.shape[0] * out.dtype.row_bytes(out.shape[1])

    def cases(self) -> Iterator[Case]:
        ids = Operand((3,), "i32", [5, 0, 2])
        for t in (*FLOATS, "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"):
            d = 96 if block_of(t) > 1 else 31
            state = Operand((7, d), t, role="state")
            yield Case((state, Operand((3, d)), ids), note=t, tolerance=ROUNDED[t])
        state = Operand((172, 64), "f16", role="state")
        many = Operand((31,), "i32", lambda rng, shape: rng.permutation(172)[:31])
        yield Case((state, Operand((31, 64)), many), note="many", tolerance=ROUNDED["f16"])
        one = Operand((1, 1), role="state")
        yield Case((one, Operand((1, 1)), Operand((1,), "i32", [0])), note="one")
        state = Operand((4, 31), role="state")
        dropped = Operand((4,), "i32", [-1, 3, 4, 1])
        yield Case((state, Operand((4, 31)), dropped), note="dropped")
        state = Operand((7, 64), "q8_0", pad=(2, 32), role="state")
        x = Operand((3, 64), pad=(1, 5))
        yield Case((state, x, ids), note="view", tolerance=ROUNDED["q8_0"])
        zero = Operand((3, 32), data=0.0)
        yield Case((Operand((7, 32), "q8_0", role="state"), zero, ids), note="zero rows",
                   tolerance=ROUNDED["q8_0"])  # fmt: skip
