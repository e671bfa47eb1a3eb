"""norm_qkv_rope: everything of a decoder block before its attention, in one op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, I32, Case, DType, Operand, OpSpec, Param, Shape, Tensor, op_spec
from ._common import positive, rows_dense
from .mul_mat import infer_mul_mat
from .norm_mul_mat import check_norm
from .rms_norm import RmsNorm
from .rope import Rope


class NormQkvRope(OpSpec):
    name = "norm_qkv_rope"
    doc = (
        "h = rms_norm_mul(x, norm); the result is rope(mul_mat(wq, h)) by heads. Row rows[i] of "
        "k_state becomes rope(mul_mat(wk, h[i])), that of v_state mul_mat(wv, h[i]); rows outside "
        "the states are dropped."
    )
    operands = (
        "x f32 [m, k]",
        "norm f32 [k]",
        "wq any float or quantized [n_head hd, k]",
        "wk any float or quantized [n_head_kv hd, k]",
        "wv any float or quantized [n_v, k]",
        "pos i32 [m]",
        "rows i32 [m], of the states",
        "k_state any float or quantized [n_ctx, n_head_kv hd]",
        "v_state any float or quantized [n_ctx, n_v]",
        "freq_factors? f32 [n_dims / 2]",
    )
    rows_of = 0
    weights = (2, 3, 4)
    across = (7, 8)
    params = (*RmsNorm.params, Param("head_dim", "i", doc="elements of a head"), *Rope.params)
    cost = "2 m k (n_q + n_k + n_v) + 5 m k"
    tolerance = 5e-4
    fused_from = ("rms_norm_mul", "mul_mat", "rope", "set_rows")
    also_writes = (7, 8)
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        x, _, wq, wk, wv, pos, rows, k_state, v_state, *factors = srcs
        check_norm(self, *srcs)
        shapes = [infer_mul_mat(self, w, x) for w in (wq, wk, wv)]
        hd = params["head_dim"]
        if len(x.shape) != 2 or hd < 1 or any(s[1] % hd for s in shapes[:2]):
            raise self.fail(f"queries and keys must be heads of {hd}", *srcs)
        for t, name in ((pos, "pos"), (rows, "rows")):
            if t.dtype is not I32 or t.shape != x.shape[:1]:
                raise self.fail(f"{name} must be i32 [m]", *srcs)
        turned = (params["n_dims"] // 2,)
        if any(f is not None and (f.dtype is not F32 or f.shape != turned) for f in factors):
            raise self.fail(f"freq_factors must be f32 {list(turned)}", *srcs)
        for state, shape in zip((k_state, v_state), shapes[1:], strict=True):
            if len(state.shape) != 2 or state.shape[1] != shape[1] or not rows_dense(state):
                raise self.fail("a state must be [n_ctx, n] with a column a row of w", *srcs)
        return F32, (x.shape[0], shapes[0][1] // hd, hd)

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        x, norm, wq, *_ = srcs
        return self._rotated(wq, self._normed(x, norm, params), srcs, params)

    def written_also(self, *srcs: Any, **params: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        x, norm, _, wk, wv, _, rows, k_state, v_state, *_ = srcs
        h = self._normed(x, norm, params)
        k = self._rotated(wk, h, srcs, params).reshape(len(x), len(wk))
        v = op_spec("mul_mat").reference(wv, h)
        set_rows = op_spec("set_rows")
        return [
            (set_rows.reference(s, y, rows), set_rows.written(s, y, rows))
            for s, y in ((k_state, k), (v_state, v))
        ]

    def _normed(self, x: np.ndarray, norm: np.ndarray, params: Any) -> np.ndarray:
        return op_spec("rms_norm_mul").reference(x, norm, eps=params["eps"])

    def _rotated(self, w: np.ndarray, h: np.ndarray, srcs: Any, params: Any) -> np.ndarray:
        hd = params["head_dim"]
        heads = op_spec("mul_mat").reference(w, h).reshape(len(h), len(w) // hd, hd)
        rope = {p.name: params[p.name] for p in Rope.params}
        factors = srcs[9] if len(srcs) > 9 else None
        return op_spec("rope").reference(heads, srcs[5], factors, **rope)

    def flops(self, out: Tensor) -> int:
        x, _, *weights = out.live_srcs()[:5]
        return 5 * x.size + sum(2 * x.shape[0] * w.size for w in weights)

    def bytes(self, out: Tensor) -> int:
        read = out.live_srcs()[:7]
        m, states = read[0].shape[0], out.live_srcs()[7:9]
        written = sum(m * s.dtype.row_bytes(s.shape[1]) for s in states)
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
