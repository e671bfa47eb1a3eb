"""norm_qkv_rope: everything of a decoder block before its attention, in one op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..graph import F32, I32, Case, DType, Operand, OpSpec, Param, Shape, Tensor, op_spec
from ._common import positive, rows_dense
from .mul_mat import infer_mul_mat
from .norm_mul_mat import check_norm
from .rope import Rope


class NormQkvRope(OpSpec):
    name = "norm_qkv_rope"
    doc = (
        "qkv_heads of the products of h = rms_norm_mul(x, norm), or of x, with wq, wk and wv; q's "
        "and k's by heads."
    )
    operands = (
        "x f32 [m, k]",
        "norm? f32 [k]",
        "wq any float or quantized [n_head hd, k]",
        "wk any float or quantized [n_head_kv hd, k]",
        "wv any float or quantized [n_v, k]",
        "pos i32 [m]",
        "rows i32 [m], of the states",
        "k_state any float or quantized [n_ctx, n_head_kv hd]",
        "v_state any float or quantized [n_ctx, n_v]",
        "freq_factors? f32 [n_dims / 2]",
        "q_bias? f32 [n_head hd]",
        "k_bias? f32 [n_head_kv hd]",
        "v_bias? f32 [n_v]",
        "q_norm? f32 [hd]",
        "k_norm? f32 [hd]",
    )
    rows_of = 0
    weights = (2, 3, 4)
    across = (7, 8)
    params = (
        Param("eps", "f", 0.0, doc="of the norm of x"),
        Param("head_eps", "f", 0.0, doc="of the norms of heads"),
        Param("head_dim", "i", doc="elements of a head"),
        *Rope.params,
    )
    cost = "2 m k (n_q + n_k + n_v) + 5 m k"
    tolerance = 5e-4
    fused_from = ("rms_norm_mul", "mul_mat", "qkv_heads")
    also_writes = (7, 8)
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        x, norm, wq, wk, wv, pos, rows, k_state, v_state = srcs[:9]
        if norm is not None:
            check_norm(self, *srcs)
        shapes = [infer_mul_mat(self, w, x) for w in (wq, wk, wv)]
        hd = params["head_dim"]
        if len(x.shape) != 2 or hd < 1 or any(s[1] % hd for s in shapes[:2]):
            raise self.fail(f"queries and keys must be heads of {hd}", *srcs)
        for t, name in ((pos, "pos"), (rows, "rows")):
            if t.dtype is not I32 or t.shape != x.shape[:1]:
                raise self.fail(f"{name} must be i32 [m]", *srcs)
        n_dims = params["n_dims"]
        if not 0 < n_dims <= hd or n_dims % 2 or params["mode"] == "2d":
            raise self.fail(f"n_dims={n_dims} must be a multiple of two up to head_dim", *srcs)
        lengths = [n_dims // 2, *(s[1] for s in shapes), hd, hd]
        names = [o.split("?")[0] for o in self.operands[9:]]
        for t, n, name in zip(srcs[9:], lengths, names, strict=False):
            if t is not None and (t.dtype is not F32 or t.shape != (n,) or not rows_dense(t)):
                raise self.fail(f"{name} must be f32 {[n]}", *srcs)
        for state, shape in zip((k_state, v_state), shapes[1:], strict=True):
            if len(state.shape) != 2 or state.shape[1] != shape[1] or not rows_dense(state):
                raise self.fail("a state must be [n_ctx, n] with a column a row of w", *srcs)
        return F32, (x.shape[0], shapes[0][1] // hd, hd)

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        heads, given = self._heads(srcs, params)
        return op_spec("qkv_heads").reference(*heads, **given)

    def written_also(self, *srcs: Any, **params: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        heads, given = self._heads(srcs, params)
        return op_spec("qkv_heads").written_also(*heads, **given)

    def _heads(self, srcs: Any, params: Any) -> tuple[list[Any], dict[str, Any]]:
        """Operands and parameters of qkv_heads."""
        (x, norm), hd = srcs[:2], params["head_dim"]
        if norm is not None:
            x = op_spec("rms_norm_mul").reference(x, norm, eps=params["eps"])
        q, k, v = (op_spec("mul_mat").reference(w, x) for w in srcs[2:5])
        q, k = (y.reshape(len(y), y.shape[1] // hd, hd) for y in (q, k))
        v = v[:, None]
        given = {n: p for n, p in params.items() if n not in ("eps", "head_dim")}
        return [q, k, v, *srcs[5:]], given

    def flops(self, out: Tensor) -> int:
        x, _, *weights = out.srcs[:5]
        assert x is not None
        return 5 * x.size + sum(2 * x.shape[0] * w.size for w in weights if w is not None)

    def bytes(self, out: Tensor) -> int:
        states = [s for s in out.srcs[7:9] if s is not None]
        read = [s for s in (*out.srcs[:7], *out.srcs[9:]) if s is not None]
        written = sum(out.shape[0] * s.dtype.row_bytes(s.shape[1]) for s in states)
        return out.nbytes + sum(s.nbytes for s in read) + written

    def cases(self) -> Iterator[Case]:
        def srcs(types: tuple[str, str, str], k: int, hd: int, heads: tuple[int, int],
                 m: int, state: str, n_v: int = 0,
                 room: int = 31) -> tuple[Operand | None, ...]:  # fmt: skip
            n_q, n_k = heads[0] * hd, heads[1] * hd
            rows = n_q, n_k, n_v or n_k
            weights = (Operand((n, k), t, role="weight") for n, t in zip(rows, types, strict=True))
            pos = Operand((m,), "i32", lambda rng, shape: rng.integers(0, 4096, shape))
            where = Operand((m,), "i32", lambda rng, shape: rng.permutation(room)[: shape[0]])
            states = (Operand((room, n), state, role="state") for n in rows[1:])
            norm = Operand((k,), data=positive, role="weight")
            return (Operand((m, k)), norm, *weights, pos, where, *states)

        for mode in ("norm", "neox"):
            rope = {"eps": 1e-5, "n_dims": 64, "head_dim": 64, "mode": mode}
            for t in ("q4_0", "q8_0", "q6_K", "f16"):
                yield Case(srcs((t, t, t), 512, 64, (3, 1), 1, "f16"), rope, f"{mode} {t}")
            types = ("q4_K", "q4_K", "q6_K")
            yield Case(srcs(types, 2304, 64, (2, 2), 3, "f32"), rope, f"{mode} mixed, by 3")
        one = {"eps": 1e-5, "n_dims": 6, "head_dim": 6, "mode": "norm", "freq_base": 5e5}
        yield Case(srcs(("bf16",) * 3, 64, 6, (31, 31), 2, "bf16", 10), one, "bf16, other values")
        heads = {"eps": 1e-5, "n_dims": 32, "head_dim": 32, "mode": "neox"}
        for m in (40, 150):
            yield Case(srcs(("f16",) * 3, 128, 32, (3, 1), m, "f16", 0, 160), heads, f"{m} columns")
        part = {**one, "n_dims": 4}
        yield Case(srcs(("f32",) * 3, 31, 6, (1, 1), 1, "f32"), part, "part of a head")
        factors = Operand((3,), data=[1.0, 2.0, 8.0])
        yield Case((*srcs(("q8_0",) * 3, 64, 6, (2, 1), 2, "f32"), factors),
                   {**one, "freq_scale": 0.5}, "factors")  # fmt: skip
        yield from self._cases_of_heads(srcs)

    def _cases_of_heads(self, srcs: Callable[..., tuple[Operand | None, ...]]) -> Iterator[Case]:
        """Without a norm of x; with biases, norms of heads, dimensions that pass through."""

        def more(
            hd: int, heads: tuple[int, int], n_v: int = 0, factors: int = 0, biases: bool = False,
            norms: bool = False,
        ) -> tuple[Operand | None, ...]:  # fmt: skip
            rows = heads[0] * hd, heads[1] * hd, n_v or heads[1] * hd
            of_bias = [Operand((n,), role="weight") if biases else None for n in rows]
            of_norm = [Operand((hd,), data=positive, role="weight") if norms else None] * 2
            f = Operand((factors,), data=positive, role="weight") if factors else None
            return (f, *of_bias, *of_norm)

        eps = {"eps": 1e-5, "head_eps": 1e-6}
        for hd, heads in ((64, (5, 1)), (96, (2, 2)), (128, (7, 2)), (256, (3, 1)), (512, (1, 1))):
            whole = {**eps, "n_dims": hd, "head_dim": hd, "mode": "neox"}
            for m, state in ((1, "f16"), (3, "f32")):
                given = srcs(("q4_0",) * 3, 512, hd, heads, m, state)
                yield Case((*given, *more(hd, heads, norms=True)), whole, f"normed {hd} by {m}")
            given = srcs(("q4_0",) * 3, 512, hd, heads, 31, "bf16")
            every = more(hd, heads, factors=hd // 2, biases=True, norms=True)
            yield Case((*given, *every), whole, f"all {hd} by 31")
        whole = {**eps, "n_dims": 64, "head_dim": 64, "mode": "neox"}
        part = {**eps, "n_dims": 32, "head_dim": 80, "mode": "norm"}
        for t in ("q4_0", "q6_K", "f16", "f32"):
            for m in (1, 2):
                given = srcs((t,) * 3, 768, 80, (3, 1), m, "f16", 100)
                biases = more(80, (3, 1), 100, biases=True)
                yield Case((*given, *biases), part, f"biases, part of a head, {t} by {m}")
                x, _, *rest = srcs((t,) * 3, 768, 64, (3, 1), m, "f16")
                yield Case((x, None, *rest), whole, f"no norm, {t} by {m}")
        odd = {**eps, "n_dims": 4, "head_dim": 6, "mode": "neox"}
        given = srcs(("q8_0", "q8_0", "f16"), 64, 6, (2, 1), 2, "f32", 9)
        yield Case((*given, *more(6, (2, 1), 9, 2, True, True)), odd, "heads of 6, values of 9")
        x, _, *rest = srcs(("q4_K", "q4_K", "q6_K"), 256, 64, (2, 1), 1, "f16")
        yield Case((x, None, *rest, *more(64, (2, 1), norms=True)), whole, "mixed, normed")
