"""ssm_conv: causal convolution of each channel over a sequence's last tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape, Tensor
from ._common import rows_dense, silu
from ._recurrent import (
    BATCHES,
    SEQUENCES,
    STATE_OPERANDS,
    check_state,
    sequences,
    state_operands,
)


class SsmConv(OpSpec):
    name = "ssm_conv"
    doc = (
        "y[i, c] = bias[c] + sum_j w[c, j] x[i - K + 1 + j, c], then silu; rows before the first "
        "come from the state, which holds a sequence's last K - 1 rows, oldest first. " + SEQUENCES
    )
    operands = ("x f32 [n_tok, n]", "w f32 [n, K]", *STATE_OPERANDS, "bias? f32 [n]")
    params = (Param("silu", "i", 1, doc="whether silu follows"),)
    rows_of = 0
    across = (1, 2, 5)
    also_writes = (2,)
    cost = "(2 K + 5) an element"

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        x, w, state, _, _, bias = (*srcs, None)[:6]
        if x.dtype is not F32 or len(x.shape) != 2 or not rows_dense(x):
            raise self.fail("x must be f32 [n_tok, n] with dense rows", *srcs)
        n = x.shape[1]
        if w.dtype is not F32 or len(w.shape) != 2 or w.shape[0] != n or not rows_dense(w):
            raise self.fail("w must be f32 [n, K] with dense rows", *srcs)
        if not 2 <= w.shape[1] <= 8:
            raise self.fail(f"K={w.shape[1]}, expected 2 to 8", *srcs)
        check_state(self, srcs, 2, (w.shape[1] - 1) * n)
        if bias is not None and (bias.dtype is not F32 or bias.shape != (n,)):
            raise self.fail("bias must be f32 [n]", *srcs)
        return F32, x.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        return self._run(srcs, params["silu"])[0]

    def written_also(self, *srcs: Any, **params: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        return [self._run(srcs, params["silu"])[1:]]

    def _run(self, srcs: Any, act: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The result, the state afterwards and its rows that change."""
        x, w, state, pos, slot, bias = (*srcs, None)[:6]
        k = w.shape[1]
        out, after, changed = np.zeros(x.shape, np.float32), state.copy(), []
        for s, rows, goes_on in sequences(pos, slot, len(state)):
            before = state[s] if goes_on else np.zeros_like(state[s])
            all_rows = np.concatenate([before.reshape(k - 1, -1), x[rows]])
            n = len(all_rows) - k + 1
            y = sum(all_rows[j : j + n].astype(np.float64) * w[:, j] for j in range(k))
            y = y if bias is None else y + bias
            out[rows] = silu(y) if act else y
            after[s] = all_rows[n:].reshape(-1)
            changed.append(s)
        return out, after, np.array(changed, int)

    def flops(self, out: Tensor) -> int:
        return (2 * out.live_srcs()[1].shape[1] + 5) * out.size

    def bytes(self, out: Tensor) -> int:
        x, w, state = out.live_srcs()[:3]
        return out.nbytes + x.nbytes + w.nbytes + 2 * (state.nbytes // max(state.shape[0], 1))

    def cases(self) -> Iterator[Case]:
        for seqs, pad in BATCHES:
            m = sum(n for n, _ in seqs) + pad
            for n, k in ((31, 4), (64, 2), (172, 3)):
                states = state_operands((k - 1) * n, seqs, pad)
                srcs = Operand((m, n)), Operand((n, k), role="weight"), *states
                yield Case(srcs, note=f"{m} tokens of {len(seqs)} sequences, {n} by {k}")
        srcs = Operand((4, 64)), Operand((64, 4), role="weight")
        states = state_operands(192, ((3, 1), (1, 5)))
        yield Case((*srcs, *states, Operand((64,), role="weight")), {"silu": 0}, "bias alone")
        yield Case((*srcs, *states, Operand((64,), role="weight")), note="bias")
        yield Case((Operand((4, 64), pad=(1, 7)), srcs[1], *states), note="view")
