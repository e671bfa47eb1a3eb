"""gated_delta: the gated delta rule, linear attention whose state forgets and corrects.

Yang et al. 2024 (arXiv 2412.06464).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape, Tensor
from ._common import rows_dense, sigmoid
from ._recurrent import (
    BATCHES,
    SEQUENCES,
    STATE_OPERANDS,
    check_state,
    sequences,
    state_operands,
)


class GatedDelta(OpSpec):
    name = "gated_delta"
    doc = (
        "For each token and value head, with q and k of length one (x / sqrt(sum(x^2) + eps)) and "
        "q divided by sqrt(dk): S *= exp(a softplus(alpha + dt_bias)); "
        "S += k (sigmoid(beta) (v - k S)); the result is q S. S [dk, dv] is a head's state. Value "
        "head h has the key head h // (n_head_v / n_head_k), or h % n_head_k if tiled. " + SEQUENCES
    )
    operands = (
        "qkv f32 [n_tok, 2 n_head_k dk + n_head_v dv], side by side",
        "alpha f32 [n_tok, n_head_v]",
        "beta f32 [n_tok, n_head_v]",
        "dt_bias f32 [n_head_v]",
        "a f32 [n_head_v], negative",
        *STATE_OPERANDS,
    )
    params = (
        Param("n_head_k", "i"),
        Param("dk", "i"),
        Param("tiled", "i", 0),
        Param("eps", "f", 1e-6),
    )
    rows_of = 0
    across = (3, 4, 5)
    also_writes = (5,)
    cost = "7 dk dv a token and value head"
    tolerance = 1e-6  # rounding goes from token to token

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        qkv, alpha, beta, dt_bias, a = srcs[:5]
        if any(t.dtype is not F32 or not rows_dense(t) for t in srcs[:5]):
            raise self.fail("all but pos and slot must be f32 with dense rows", *srcs)
        if len(qkv.shape) != 2 or len(alpha.shape) != 2 or beta.shape != alpha.shape:
            raise self.fail("alpha and beta must be [n_tok, n_head_v]", *srcs)
        n_v, n_k, dk = alpha.shape[1], params["n_head_k"], params["dk"]
        wide = qkv.shape[1] - 2 * n_k * dk
        if min(n_k, dk, n_v) < 1 or n_v % n_k or wide < 1 or wide % n_v:
            raise self.fail(f"{n_k} key heads of {dk} and {n_v} value heads do not fit", *srcs)
        if alpha.shape[0] != qkv.shape[0] or dt_bias.shape != (n_v,) or a.shape != (n_v,):
            raise self.fail("alpha needs a row a token, dt_bias and a a value a head", *srcs)
        check_state(self, srcs, 5, dk * wide)
        return F32, (qkv.shape[0], n_v, wide // n_v)

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        return self._run(srcs, params)[0]

    def written_also(self, *srcs: Any, **params: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        return [self._run(srcs, params)[1:]]

    def _run(self, srcs: Any, params: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The result, the state afterwards and its rows that change."""
        qkv, alpha, beta, dt_bias, a, state, pos, slot = srcs
        n_tok, n_v, n_k, dk = len(qkv), alpha.shape[1], params["n_head_k"], params["dk"]
        q, k, v = np.split(qkv.astype(np.float64), (n_k * dk, 2 * n_k * dk), axis=1)
        heads = np.arange(n_v) % n_k if params["tiled"] else np.arange(n_v) // (n_v // n_k)
        q, k = (x.reshape(n_tok, n_k, dk) for x in (q, k))
        q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + params["eps"]) for x in (q, k))
        q, k = q[:, heads] / np.sqrt(dk), k[:, heads]
        v = v.reshape(n_tok, n_v, v.shape[1] // n_v)
        decay = np.exp(a * np.logaddexp(0, alpha.astype(np.float64) + dt_bias))
        share = sigmoid(beta)
        out, after, changed = np.zeros(v.shape, np.float32), state.copy(), []
        for s, rows, goes_on in sequences(pos, slot, len(state)):
            memory = state[s].astype(np.float64).reshape(n_v, dk, -1) * goes_on
            for i in range(rows.start, rows.stop):
                memory *= decay[i, :, None, None]
                delta = (v[i] - np.einsum("hk,hkv->hv", k[i], memory)) * share[i, :, None]
                memory += k[i, :, :, None] * delta[:, None, :]
                out[i] = np.einsum("hk,hkv->hv", q[i], memory)
            after[s] = memory.reshape(-1)
            changed.append(s)
        return out, after, np.array(changed, int)

    def flops(self, out: Tensor) -> int:
        return 7 * int(out.params["dk"]) * out.size

    def bytes(self, out: Tensor) -> int:
        state = out.live_srcs()[5]
        rest = sum(t.nbytes for t in out.live_srcs() if t is not state)
        return out.nbytes + rest + 2 * (state.nbytes // max(state.shape[0], 1))

    def cases(self) -> Iterator[Case]:
        def case(
            seqs: Any,
            pad: int,
            heads: tuple[int, int],
            dk: int,
            dv: int,
            note: str = "",
            view: tuple[int, ...] = (),
            **params: Any,
        ) -> Case:
            m, (n_k, n_v) = sum(n for n, _ in seqs) + pad, heads
            falling = lambda rng, shape: -rng.uniform(0.02, 0.5, shape)  # noqa: E731
            srcs = (
                Operand((m, 2 * n_k * dk + n_v * dv), pad=view), Operand((m, n_v), pad=view),
                Operand((m, n_v), pad=view), Operand((n_v,), role="weight"),
                Operand((n_v,), data=falling, role="weight"),
                *state_operands(n_v * dk * dv, seqs, pad),
            )  # fmt: skip
            note = note or f"{m} tokens of {len(seqs)} sequences, heads {n_k}/{n_v} of {dk}, {dv}"
            return Case(srcs, {"n_head_k": n_k, "dk": dk, **params}, note)

        for seqs, pad in BATCHES:
            yield case(seqs, pad, (2, 4), 16, 16)
            yield case(seqs, pad, (1, 1), 31, 17)
            yield case(seqs, pad, (2, 4), 128, 128)
        yield case(BATCHES[3][0], 3, (2, 6), 16, 32, "tiled", tiled=1)
        yield case(BATCHES[3][0], 0, (2, 2), 64, 64, "views", (2, 5))
        yield case(((150, 0),), 0, (1, 2), 64, 128, "long")
