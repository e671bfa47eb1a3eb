"""ssm_scan: the selective scan of Mamba 2.

Dao and Gu 2024 (arXiv 2405.21060).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape, Tensor
from ._common import rows_dense
from ._recurrent import (
    BATCHES,
    SEQUENCES,
    STATE_OPERANDS,
    check_state,
    sequences,
    state_operands,
)


class SsmScan(OpSpec):
    name = "ssm_scan"
    doc = (
        "For each token and head, with t = softplus(dt + dt_bias): S = exp(t a) S + B (t x); the "
        "result is C S + d x. S [n_state, hd] is a head's state; B and C are those of its group of "
        "neighbouring heads. " + SEQUENCES
    )
    operands = (
        "xbc f32 [n_tok, n_head hd + 2 n_group n_state], side by side",
        "dt f32 [n_tok, n_head]",
        "dt_bias f32 [n_head]",
        "a f32 [n_head], negative",
        "d f32 [n_head]",
        *STATE_OPERANDS,
    )
    params = (Param("n_group", "i", 1), Param("n_state", "i"))
    rows_of = 0
    across = (2, 3, 4, 5)
    also_writes = (5,)
    cost = "(5 n_state + 2) an element"
    tolerance = 1e-6  # rounding goes from token to token

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        xbc, dt, *vectors = srcs[:5]
        if any(t.dtype is not F32 or not rows_dense(t) for t in srcs[:5]):
            raise self.fail("all but pos and slot must be f32 with dense rows", *srcs)
        if len(xbc.shape) != 2 or len(dt.shape) != 2 or dt.shape[0] != xbc.shape[0]:
            raise self.fail("xbc and dt must be [n_tok, ..]", *srcs)
        n_head, groups, n = dt.shape[1], params["n_group"], params["n_state"]
        wide = xbc.shape[1] - 2 * groups * n
        if min(n_head, groups, n) < 1 or n_head % groups or wide < 1 or wide % n_head:
            raise self.fail(f"{n_head} heads in {groups} groups of {n} states do not fit", *srcs)
        if any(t.shape != (n_head,) for t in vectors):
            raise self.fail("dt_bias, a and d must have a value a head", *srcs)
        check_state(self, srcs, 5, wide * n)
        return F32, (xbc.shape[0], n_head, wide // n_head)

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        return self._run(srcs, params)[0]

    def written_also(self, *srcs: Any, **params: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        return [self._run(srcs, params)[1:]]

    def _run(self, srcs: Any, params: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The result, the state afterwards and its rows that change."""
        xbc, dt, dt_bias, a, d, state, pos, slot = srcs
        n_tok, n_head, groups, n = len(xbc), dt.shape[1], params["n_group"], params["n_state"]
        wide = xbc.shape[1] - 2 * groups * n
        x, b, c = np.split(xbc.astype(np.float64), (wide, wide + groups * n), axis=1)
        x = x.reshape(n_tok, n_head, wide // n_head)
        b, c = (np.repeat(t.reshape(n_tok, groups, n), n_head // groups, axis=1) for t in (b, c))
        step = np.logaddexp(0, dt.astype(np.float64) + dt_bias)
        decay = np.exp(step * a)
        out, after, changed = np.zeros(x.shape, np.float32), state.copy(), []
        for s, rows, goes_on in sequences(pos, slot, len(state)):
            memory = state[s].astype(np.float64).reshape(n_head, n, -1) * goes_on
            for i in range(rows.start, rows.stop):
                memory *= decay[i, :, None, None]
                memory += b[i, :, :, None] * (step[i, :, None] * x[i])[:, None, :]
                out[i] = np.einsum("hn,hnp->hp", c[i], memory) + d[:, None] * x[i]
            after[s] = memory.reshape(-1)
            changed.append(s)
        return out, after, np.array(changed, int)

    def flops(self, out: Tensor) -> int:
        return (5 * int(out.params["n_state"]) + 2) * out.size

    def bytes(self, out: Tensor) -> int:
        state = out.live_srcs()[5]
        rest = sum(t.nbytes for t in out.live_srcs() if t is not state)
        return out.nbytes + rest + 2 * (state.nbytes // max(state.shape[0], 1))

    def cases(self) -> Iterator[Case]:
        def case(seqs: Any, pad: int, heads: int, hd: int, groups: int, n: int, note: str = "",
                 view: tuple[int, ...] = ()) -> Case:  # fmt: skip
            m = sum(k for k, _ in seqs) + pad
            falling = lambda rng, shape: -rng.uniform(0.02, 1.0, shape)  # noqa: E731
            vector = Operand((heads,), role="weight")
            srcs = (
                Operand((m, heads * hd + 2 * groups * n), pad=view),
                Operand((m, heads), pad=view), vector,
                Operand((heads,), data=falling, role="weight"), vector,
                *state_operands(heads * hd * n, seqs, pad),
            )  # fmt: skip
            note = note or f"{m} tokens of {len(seqs)} sequences, {heads} heads of {hd} by {n}"
            return Case(srcs, {"n_group": groups, "n_state": n}, note)

        for seqs, pad in BATCHES:
            yield case(seqs, pad, 8, 16, 1, 16)
            yield case(seqs, pad, 3, 17, 3, 31)
            yield case(seqs, pad, 4, 64, 2, 128)
        yield case(BATCHES[3][0], 0, 4, 32, 1, 16, "views", (2, 5))
        yield case(((150, 0),), 0, 2, 64, 1, 64, "long")
