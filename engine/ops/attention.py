"""attention: causal attention over a KV cache, in one op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, I32, Case, DType, Operand, OpSpec, Param, Shape, Tensor
from ._common import alibi_slopes, rows_dense

_SCORE = 6  # operations a score beside its dot products: scale, bias, max, exp, sum, rescale


class Attention(OpSpec):
    name = "attention"
    doc = (
        "softmax(bias + cap(scale q k^T)) v for each token and head; head h reads KV head "
        "h // (n_head / n_head_kv). Row j of k and v is visible to token i iff j <= pos[i] and "
        "(window == 0 or pos[i] - j < window). cap(s) = softcap tanh(s / softcap) if softcap > 0; "
        "bias = -slope(head) (pos[i] - j) if max_bias > 0 (ALiBi). A token that sees nothing "
        "(position -1: padding) gives zeros."
    )
    operands = (
        "q f32 [n_tok, n_head, hd]",
        "k f32, f16, bf16 or q8_0 [n_ctx, n_head_kv, hd]",
        "v f32, f16, bf16 or q8_0 [n_ctx, n_head_kv, hd_v]",
        "pos i32 [n_tok]",
    )
    params = (
        Param("scale", "f", doc="usually 1 / sqrt(hd)"),
        Param("max_bias", "f", 0.0, doc="ALiBi's largest bias; 0 turns it off"),
        Param("softcap", "f", 0.0, doc="bound of the scores; 0 turns it off"),
        Param("window", "i", 0, doc="keys a token sees, itself included; 0 means all"),
    )
    cost = "(2 hd + 2 hd_v + 6) n_head a visible (token, key) pair"
    tolerance = 5e-4

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        q, k, v, pos = srcs
        if q.dtype is not F32 or any(len(s.shape) != 3 for s in (q, k, v)):
            raise self.fail("q must be f32, and q, k and v [rows, heads, dims]", *srcs)
        if any(s.dtype.name not in ("f32", "f16", "bf16", "q8_0") for s in (k, v)):
            raise self.fail("k and v must be f32, f16, bf16 or q8_0", *srcs)
        if not all(rows_dense(s) for s in srcs):
            raise self.fail("rows must be dense; use cont", *srcs)
        if k.shape[2] != q.shape[2]:
            raise self.fail("q and k must have one head size", *srcs)
        if k.shape[:2] != v.shape[:2]:
            raise self.fail("k and v must have the same rows and heads", *srcs)
        if 0 in (*q.shape[1:], *k.shape[1:], v.shape[2]):
            raise self.fail(
                "q, k and v must have at least one head, and heads of one or more", *srcs
            )
        if q.shape[1] % k.shape[1]:
            raise self.fail("the heads of q must be a multiple of those of k", *srcs)
        if pos.dtype is not I32 or pos.shape != q.shape[:1]:
            raise self.fail("pos must be i32 [n_tok]", *srcs)
        if params["window"] < 0:
            raise self.fail(f"window={params['window']} is negative", *srcs)
        return F32, (*q.shape[:2], v.shape[2])

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        q, k, v, pos = srcs
        n_head, group = q.shape[1], q.shape[1] // k.shape[1]
        k = np.repeat(k.astype(np.float64), group, axis=1)
        v = np.repeat(v.astype(np.float64), group, axis=1)
        s = np.einsum("ihd,jhd->hij", q.astype(np.float64), k) * params["scale"]
        if params["softcap"] > 0:
            s = params["softcap"] * np.tanh(s / params["softcap"])
        distance = pos.astype(np.int64)[:, None] - np.arange(len(k))
        if params["max_bias"] > 0:
            s = s - alibi_slopes(n_head, params["max_bias"])[:, None, None] * distance
        visible = distance >= 0
        if params["window"] > 0:
            visible &= distance < params["window"]
        s = np.where(visible, s, -np.inf)
        top = s.max(axis=-1, keepdims=True, initial=-np.inf)
        e = np.exp(s - np.where(np.isneginf(top), 0, top))
        total = e.sum(axis=-1, keepdims=True)
        p = e / np.where(total == 0, 1, total)
        return np.einsum("hij,jhd->ihd", p, v).astype(np.float32)

    def flops(self, out: Tensor) -> int:
        return self._cost(out, out.live_srcs()[1].shape[0])[1]

    def bytes(self, out: Tensor) -> int:
        return self._cost(out, out.live_srcs()[1].shape[0])[0]

    def cost_at(self, out: Tensor, n_past: int) -> tuple[int, int]:
        return self._cost(out, n_past + out.shape[0])

    def _cost(self, out: Tensor, n_kv: int) -> tuple[int, int]:
        """(bytes, flops) when the tokens are the last of `n_kv` positions."""
        q, k, v, pos = out.live_srcs()
        n_tok, n_head, hd = q.shape
        n_kv = max(min(n_kv, k.shape[0]), 1)
        window = out.params["window"] or n_kv
        pairs = sum(min(max(n_kv - back, 0), window) for back in range(n_tok))
        rows = min(n_kv, window + n_tok - 1)
        kv = rows * (k.nbytes + v.nbytes) // max(k.shape[0], 1)
        flops = pairs * n_head * (2 * hd + 2 * v.shape[2] + _SCORE)
        return out.nbytes + q.nbytes + pos.nbytes + kv, flops

    def cases(self) -> Iterator[Case]:
        def case(
            n_tok: int, heads: tuple[int, int], hd: int, n_ctx: int, t: str = "f32", *,
            note: str = "", hd_v: int = 0, pos: Any = None, kv: dict[str, Any] | None = None,
            tv: str = "", **params: Any,
        ) -> Case:  # fmt: skip
            last = np.arange(n_ctx - n_tok, n_ctx)
            k = Operand((n_ctx, heads[1], hd), t, role="state", **(kv or {}))
            v = Operand((n_ctx, heads[1], hd_v or hd), tv or t, role="state", **(kv or {}))
            where = Operand((n_tok,), "i32", last if pos is None else pos)
            types = t if v.dtype == t else f"{t}/{tv}"
            return Case(
                (Operand((n_tok, heads[0], hd)), k, v, where),
                {"scale": hd**-0.5, **params},
                note=f"{types} {n_tok} tok {heads[0]}/{heads[1]} heads of {hd}, ctx {n_ctx} {note}",
                # Nothing is rounded in f32 but sums and exponentials.
                tolerance=1e-7 if types == "f32" else None,
            )

        for t in ("f32", "f16", "bf16", "q8_0"):
            hd = 32 if t == "q8_0" else 31
            yield case(1, (1, 1), hd, 1, t)
            yield case(1, (4, 2), 64, 172, t)
            yield case(3, (3, 3), hd, 31, t)
            yield case(31, (8, 2), 64, 172, t)
            yield case(3, (6, 2), 96, 64, t, hd_v=32, note="v narrower")
            yield case(17, (4, 1), 128, 33, t, window=5, note="window")
            yield case(5, (4, 2), 64, 40, t, softcap=2.0, note="softcap")
            for n_head in (4, 6):
                yield case(5, (n_head, 2), 32, 40, t, max_bias=8.0, note="alibi")
            short = [0, 3, 2, 17, -1]
            yield case(5, (4, 2), 64, 40, t, pos=short, note="any order, padding")
            block = 32 if t == "q8_0" else 3
            yield case(3, (4, 2), 64, 40, t, kv={"pad": (3, 1, block)}, note="views")
            yield case(3, (4, 2), 64, 40, t, kv={"permute": (1, 0, 2)}, note="heads outermost")
        some = [("f16", "q8_0"), ("q8_0", "f16"), ("f32", "f16"), ("f16", "f32"), ("f32", "q8_0")]
        for t, tv in [*some, ("q8_0", "f32"), ("bf16", "f16"), ("f16", "bf16"), ("q8_0", "bf16")]:
            yield case(1, (4, 2), 64, 172, t, tv=tv)
            yield case(19, (8, 2), 64, 100, t, tv=tv)
            yield case(1, (6, 2), 96, 64, t, tv=tv, hd_v=32, note="v narrower")
            yield case(17, (4, 1), 128, 33, t, tv=tv, window=5, note="window")
        yield case(5, (4, 2), 64, 40, softcap=30.0, max_bias=4.0, window=9, note="all at once")
        # Scores near a hundred: exp without the maximum taken off overflows.
        yield case(3, (2, 1), 64, 40, scale=4.0, note="large scores")
