"""attention: of many sequences over a KV cache in pages, in one op.

A token sees the keys up to a position that is given for it: its own, as a rule, which is causal
attention; the last one of a prompt that is read in both directions. A sequence's keys and values
lie in pages of 64 rows of one state (Kwon et al. 2023, arXiv 2309.06180). Its row of the table says
which page holds which positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gguflow.engine.plan_key import PAGE

from ..graph import F32, I32, Case, DType, Operand, OpSpec, Param, Shape, Tensor
from ._common import alibi_slopes, rows_dense

_SCORE = 6  # operations a score beside its dot products: scale, bias, max, exp, sum, rescale


class Attention(OpSpec):
    name = "attention"
    doc = (
        "softmax(bias + cap(scale q k^T)) v for each token and head; head h reads KV head "
        "h // (n_head / n_head_kv). Key j of token i is row table[seq[i], j // 64] * 64 + j % 64 "
        "of k and v. It is visible iff j <= pos[i], window == 0 or pos[i] - j < window, and there "
        "is such a page: seq[i] and the table's entry are not negative. pos[i] is the last "
        "position that token i sees, from which windows and biases are measured. "
        "cap(s) = softcap tanh(s / softcap) if softcap > 0; "
        "bias = -slope(head) (pos[i] - j) if max_bias > 0 (ALiBi). A sink is one more score of its "
        "head, of a key without a value. A token that sees nothing (position -1: padding) gives "
        "zeros."
    )
    operands = (
        "q f32 [n_tok, n_head, hd]",
        "k f32, f16, bf16 or q8_0 [n_pages 64, n_head_kv, hd]",
        "v f32, f16, bf16 or q8_0 [n_pages 64, n_head_kv, hd_v]",
        "pos i32 [n_tok]",
        "seq i32 [n_tok], a row of the table each",
        "table i32 [n_seqs, n_entries], pages of k and v",
        "sinks? f32 [n_head]",
    )
    rows_of = 0
    across = (1, 2, 5, 6)
    params = (
        Param("scale", "f", doc="usually 1 / sqrt(hd)"),
        Param("max_bias", "f", 0.0, doc="ALiBi's largest bias; 0 turns it off"),
        Param("softcap", "f", 0.0, doc="bound of the scores; 0 turns it off"),
        Param("window", "i", 0, doc="keys a token sees, itself included; 0 means all"),
        Param("n_single", "i", 0, doc="the first so many tokens are single ones, of sequences "
              "whose rows before theirs were there before the run: how work is cut and rounded "
              "may depend on it"),
    )  # fmt: skip
    cost = "(2 hd + 2 hd_v + 6) n_head a visible (token, key) pair"
    tolerance = 5e-4

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        q, k, v, pos, seq, table, sinks = (*srcs, None)[:7]
        if q.dtype is not F32 or any(len(s.shape) != 3 for s in (q, k, v)):
            raise self.fail("q must be f32, and q, k and v [rows, heads, dims]", *srcs)
        if any(s.dtype.name not in ("f32", "f16", "bf16", "q8_0") for s in (k, v)):
            raise self.fail("k and v must be f32, f16, bf16 or q8_0", *srcs)
        if not all(rows_dense(s) for s in srcs if s is not None):
            raise self.fail("rows must be dense; use cont", *srcs)
        if k.shape[2] != q.shape[2]:
            raise self.fail("q and k must have one head size", *srcs)
        if k.shape[:2] != v.shape[:2]:
            raise self.fail("k and v must have the same rows and heads", *srcs)
        if k.shape[0] % PAGE:
            raise self.fail(f"k and v must be whole pages of {PAGE} rows", *srcs)
        if 0 in (*q.shape[1:], *k.shape[1:], v.shape[2]):
            raise self.fail(
                "q, k and v must have at least one head, and heads of one or more", *srcs
            )
        if q.shape[1] % k.shape[1]:
            raise self.fail("the heads of q must be a multiple of those of k", *srcs)
        for t, name in ((pos, "pos"), (seq, "seq")):
            if t.dtype is not I32 or t.shape != q.shape[:1]:
                raise self.fail(f"{name} must be i32 [n_tok]", *srcs)
        if table.dtype is not I32 or len(table.shape) != 2 or 0 in table.shape:
            raise self.fail("table must be i32 [n_seqs, n_entries], not empty", *srcs)
        if sinks is not None and (sinks.dtype is not F32 or sinks.shape != q.shape[1:2]):
            raise self.fail("sinks must be f32 [n_head]", *srcs)
        if params["window"] < 0:
            raise self.fail(f"window={params['window']} is negative", *srcs)
        if not 0 <= params["n_single"] <= q.shape[0]:
            raise self.fail(f"n_single={params['n_single']} of {q.shape[0]} tokens", *srcs)
        return F32, (*q.shape[:2], v.shape[2])

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        q, k, v, pos, seq, table, sinks = (*srcs, None)[:7]
        out = np.zeros((*q.shape[:2], v.shape[2]), np.float32)
        if not len(k):
            return out
        for s in np.unique(seq[(seq >= 0) & (seq < len(table))]):
            mine = seq == s
            pages = table[s].astype(np.int64)
            there = (pages >= 0) & (pages < len(k) // PAGE)
            rows = (np.where(there, pages, 0)[:, None] * PAGE + np.arange(PAGE)).reshape(-1)
            seen = np.repeat(there, PAGE)
            out[mine] = self._of_sequence(q[mine], k[rows], v[rows], pos[mine], seen, sinks, params)
        return out

    def _of_sequence(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, pos: np.ndarray, there: np.ndarray,
        sinks: np.ndarray | None, params: Any,
    ) -> np.ndarray:  # fmt: skip
        """Tokens of one sequence; k, v: by position, where `there` says that they are."""
        n_head, group = q.shape[1], q.shape[1] // k.shape[1]
        k, v = (np.where(there[:, None, None], x, 0) for x in (k, v))
        distance = pos.astype(np.int64)[:, None] - np.arange(len(k))
        visible = (distance >= 0) & there
        if params["window"] > 0:
            visible &= distance < params["window"]
        used = visible.any(axis=0)  # rows that nobody sees may hold anything
        k, v, distance, visible = k[used], v[used], distance[:, used], visible[:, used]
        if not used.any():
            return np.zeros((len(q), n_head, v.shape[2]), np.float32)
        k = np.repeat(k.astype(np.float64), group, axis=1)
        v = np.repeat(v.astype(np.float64), group, axis=1)
        s = np.einsum("ihd,jhd->hij", q.astype(np.float64), k) * params["scale"]
        if params["softcap"] > 0:
            s = params["softcap"] * np.tanh(s / params["softcap"])
        if params["max_bias"] > 0:
            s = s - alibi_slopes(n_head, params["max_bias"])[:, None, None] * distance
        s = np.where(visible, s, -np.inf)
        top = s.max(axis=-1, keepdims=True, initial=-np.inf)
        if sinks is not None:
            top = np.maximum(top, sinks[:, None, None])
        e = np.exp(s - np.where(np.isneginf(top), 0, top))
        total = e.sum(axis=-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sinks[:, None, None] - top)
        p = e / np.where(total == 0, 1, total)
        return np.einsum("hij,jhd->ihd", p, v).astype(np.float32)

    def flops(self, out: Tensor) -> int:
        return self._cost(out, out.live_srcs()[1].shape[0])[1]

    def bytes(self, out: Tensor) -> int:
        return self._cost(out, out.live_srcs()[1].shape[0])[0]

    def cost_at(self, out: Tensor, n_past: int) -> tuple[int, int]:
        return self._cost(out, n_past + out.shape[0])

    def _cost(self, out: Tensor, n_kv: int) -> tuple[int, int]:
        """(bytes, flops) when the tokens that are not alone in their sequence are the last of
        `n_kv` positions of one, and every other one is the last of as many less the former."""
        q, k, v, *where = out.live_srcs()[:6]
        n_tok, n_head, hd = q.shape
        n_kv = max(min(n_kv, k.shape[0]), 1)
        window, n_single = out.params["window"] or n_kv, out.params["n_single"]
        n_rest = n_tok - n_single
        each = min(max(n_kv - max(n_rest, 1) + 1, 1), window)  # keys of a token that is alone
        # Of the rest each sees one key less than the next: n_kv, n_kv - 1, ... while there are any.
        m = min(n_rest, n_kv)
        least = n_kv - m + 1
        inside = max(min(n_kv, window) - least + 1, 0)  # tokens that see less than the window
        seen = inside * (2 * least + inside - 1) // 2 + (m - inside) * window
        pairs = n_single * each + seen
        rows = n_single * each + (min(n_kv, window + n_rest - 1) if n_rest else 0)
        kv = rows * (k.nbytes + v.nbytes) // max(k.shape[0], 1)
        flops = pairs * n_head * (2 * hd + 2 * v.shape[2] + _SCORE)
        return out.nbytes + q.nbytes + sum(t.nbytes for t in where) + kv, flops

    def cases(self) -> Iterator[Case]:
        def case(
            n_tok: int, heads: tuple[int, int], hd: int, n_ctx: int, t: str = "f32", *,
            note: str = "", hd_v: int = 0, pos: Any = None, kv: dict[str, Any] | None = None,
            seqs: Sequence[tuple[int, int]] = (), pages: Any = None, tv: str = "",
            sinks: float = 0.0, **params: Any,
        ) -> Case:  # fmt: skip
            """n_ctx: keys of a sequence, of which the tokens are the last. seqs: (tokens, keys) of
            sequences, instead of one. pages: the table, instead of pages in a mixed order. sinks:
            their size, where there are any."""
            seqs = seqs or ((n_tok, n_ctx),)
            entries = max(-(-n // PAGE) for _, n in seqs)
            table = np.arange(len(seqs) * entries)[::-1].reshape(len(seqs), entries)
            table = table if pages is None else np.asarray(pages)
            rows = PAGE * (int(table.max()) + 1)
            last = np.concatenate([np.arange(n - m, n) for m, n in seqs])
            seq = np.repeat(np.arange(len(seqs)), [m for m, _ in seqs])
            k = Operand((rows, heads[1], hd), t, role="state", **(kv or {}))
            v = Operand((rows, heads[1], hd_v or hd), tv or t, role="state", **(kv or {}))
            where = Operand((n_tok,), "i32", last if pos is None else pos)
            types = t if v.dtype == t else f"{t}/{tv}"
            sink = Operand(
                heads[:1], data=lambda rng, n: sinks * rng.standard_normal(n), role="weight"
            )
            return Case(
                (Operand((n_tok, heads[0], hd)), k, v, where, Operand((n_tok,), "i32", seq),
                 Operand(table.shape, "i32", table), *([sink] if sinks else [])),
                {"scale": hd**-0.5, **params},
                note=f"{types} {n_tok} tok {heads[0]}/{heads[1]} heads of {hd}, ctx {n_ctx} {note}",
                # Nothing is rounded in f32 but sums and exponentials.
                tolerance=1e-7 if types == "f32" else None,
            )  # fmt: skip

        for t in ("f32", "f16", "bf16", "q8_0"):
            hd = 32 if t == "q8_0" else 31
            yield case(1, (1, 1), hd, 1, t)
            yield case(1, (4, 2), 64, 172, t, n_single=1)
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
            yield case(3, (4, 2), 64, 40, t, kv={"pad": (64, 1, block)}, note="views")
            yield case(3, (4, 2), 64, 40, t, kv={"permute": (1, 0, 2)}, note="heads outermost")
            yield case(1, (4, 2), 64, 172, t, n_single=1, sinks=2.0, note="sinks")
            yield case(31, (8, 2), 64, 172, t, window=9, sinks=5.0, note="sinks, window")
            # Many sequences: single tokens, then pieces of prompts of any length.
            one = tuple((1, n) for n in (1, 63, 64, 65, 200, 17, 129))
            yield case(7, (4, 2), 64, 200, t, seqs=one, n_single=7, note="single tokens")
            for hd in (80, 96, 256) if t != "q8_0" else (96, 256):
                yield case(3, (4, 2), hd, 200, t, seqs=one[3:6], n_single=3, note="single tokens")
            yield case(3, (4, 1), 128, 200, t, seqs=one[3:6], n_single=3, sinks=2.0, note="sinks")
            many = (*one[:3], (40, 40), (5, 133), (70, 300))
            yield case(118, (4, 2), 128, 300, t, seqs=many, n_single=3, note="singles and chunks")
            yield case(118, (8, 1), 64, 300, t, seqs=many, note="the same, not told")
            for hd in (80, 96, 256, 512) if t == "f16" else (96,):
                for n in (9, 70):
                    yield case(n, (4, 2), hd, 131, t, note="few and many of a prompt")
            yield case(118, (8, 2), 64, 300, t, seqs=many, n_single=3, sinks=2.0, note="sinks")
        some = [("f16", "q8_0"), ("q8_0", "f16"), ("f32", "f16"), ("f16", "f32"), ("f32", "q8_0")]
        for t, tv in [*some, ("q8_0", "f32"), ("bf16", "f16"), ("f16", "bf16"), ("q8_0", "bf16")]:
            yield case(1, (4, 2), 64, 172, t, tv=tv)
            yield case(19, (8, 2), 64, 100, t, tv=tv)
            yield case(1, (6, 2), 96, 64, t, tv=tv, hd_v=32, note="v narrower")
            yield case(17, (4, 1), 128, 33, t, tv=tv, window=5, note="window")
        yield case(5, (4, 2), 64, 40, softcap=30.0, max_bias=4.0, window=9, note="all at once")
        # Pages that a window has left behind are given back: there is no entry for them.
        gone = [[-1, -1, 4, 0], [2, -1, -1, -1]]
        seqs = ((2, 250), (3, 40))
        yield case(5, (4, 2), 64, 250, "f16", seqs=seqs, pages=gone, window=60, note="pages gone")
        # Prompts read in both directions: all tokens of one see its last position.
        whole = ((1, 70), (40, 40), (5, 5), (130, 130))
        sees = np.concatenate([np.full(m, n - 1) for m, n in whole])
        for t, hd in (("f32", 31), ("f16", 64), ("q8_0", 128), ("bf16", 64)):
            for n in (2, 4):  # few rows of prompts, and many
                m = sum(k for k, _ in whole[:n])
                yield case(m, (4, 2), hd, 130, t, seqs=whole[:n], pos=sees[:m], n_single=1,
                           note="both directions")  # fmt: skip
        yield case(1, (4, 2), 64, 96, "f16", pos=[95], note="both directions, one of its tokens")
        # Shared pages: two sequences with one beginning.
        fork = [[3, 1, 0], [3, 2, -1]]
        seqs = ((1, 150), (1, 100))
        yield case(2, (4, 2), 128, 150, "f16", seqs=seqs, pages=fork, n_single=2, note="fork")
        yield case(5, (4, 1), 576, 40, "f16", hd_v=512, note="wide")
        yield case(5, (4, 2), 64, 40, pos=[0, 3, 2, 17, -1], sinks=90.0, note="large sinks")
        # Scores near a hundred: exp without the maximum taken off overflows.
        yield case(3, (2, 1), 64, 40, scale=4.0, note="large scores")
