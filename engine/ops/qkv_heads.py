"""qkv_heads: what stands between the products that make queries, keys and values, and attention."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from ..graph import F32, I32, Case, DType, Operand, OpSpec, Param, Shape, Tensor, op_spec
from ._common import positive, rows_dense
from .rope import Rope


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), prod(x.shape[1:]))


class QkvHeads(OpSpec):
    name = "qkv_heads"
    doc = (
        "The result is rope(q + q_bias); row rows[i] of k_state becomes rope(k + k_bias)[i], that "
        "of v_state v[i] + v_bias; rows outside the states are dropped. Heads of queries and keys "
        "are normed by rms_norm_mul before rope, where there are weights for it."
    )
    operands = (
        "q f32 [m, n_head, hd]",
        "k f32 [m, n_head_kv, hd]",
        "v f32 [m, n_head_v, hd_v]",
        "pos i32 [m]",
        "rows i32 [m], of the states",
        "k_state any float or quantized [n_ctx, n_head_kv hd]",
        "v_state any float or quantized [n_ctx, n_head_v hd_v]",
        "freq_factors? f32 [n_dims / 2]",
        "q_bias? f32 [n_head hd]",
        "k_bias? f32 [n_head_kv hd]",
        "v_bias? f32 [n_head_v hd_v]",
        "q_norm? f32 [hd]",
        "k_norm? f32 [hd]",
    )
    rows_of = 0
    across = (5, 6)
    params = (Param("head_eps", "f", 0.0, doc="of the norms of heads"), *Rope.params)
    cost = "10 an element"
    tolerance = 1e-6  # states may be of 16 bits
    fused_from = ("add", "rms_norm_mul", "rope", "set_rows")
    also_writes = (5, 6)
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        q, k, v, pos, rows, k_state, v_state = srcs[:7]
        if any(t.dtype is not F32 or not rows_dense(t) for t in (q, k, v)):
            raise self.fail("q, k and v must be f32 with dense rows", *srcs)
        shapes = len(q.shape), len(k.shape), len(v.shape)
        if shapes != (3, 3, 3) or q.shape[2] != k.shape[2] or q.shape[2] < 1:
            raise self.fail("q, k and v must be heads, q's and k's of one length", *srcs)
        if any(t.dtype is not I32 or t.shape != q.shape[:1] for t in (pos, rows)):
            raise self.fail("pos and rows must be i32 [m]", *srcs)
        (m, _, hd), n_dims = q.shape, params["n_dims"]
        if not 0 < n_dims <= hd or n_dims % 2 or params["mode"] == "2d":
            raise self.fail(f"n_dims={n_dims} must be a multiple of two up to hd", *srcs)
        widths = [t.shape[1] * t.shape[2] for t in (q, k, v)]
        names = [o.split("?")[0] for o in self.operands[7:]]
        for t, n, name in zip(srcs[7:], (n_dims // 2, *widths, hd, hd), names, strict=False):
            if t is not None and (t.dtype is not F32 or t.shape != (n,) or not rows_dense(t)):
                raise self.fail(f"{name} must be f32 {[n]}", *srcs)
        for state, n in zip((k_state, v_state), widths[1:], strict=True):
            if len(state.shape) != 2 or state.shape[1] != n or not rows_dense(state):
                raise self.fail("a state must be [n_ctx, n] with a column a value", *srcs)
        if k.shape[0] != m or v.shape[0] != m:
            raise self.fail("q, k and v must have a row a token", *srcs)
        return F32, q.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        return self._rotated(0, srcs, params)

    def written_also(self, *srcs: Any, **params: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        k, v = _flat(self._rotated(1, srcs, params)), self._biased(2, srcs)
        set_rows, rows = op_spec("set_rows"), srcs[4]
        return [
            (set_rows.reference(s, y, rows), set_rows.written(s, y, rows))
            for s, y in zip(srcs[5:7], (k, v), strict=True)
        ]

    def _biased(self, i: int, srcs: Any) -> np.ndarray:
        """Queries, keys or values, f32 [m, n]."""
        x = _flat(srcs[i])
        bias = srcs[8 + i] if len(srcs) > 8 + i else None
        return x if bias is None else op_spec("add").reference(x, bias)

    def _rotated(self, i: int, srcs: Any, params: Any) -> np.ndarray:
        """The heads of queries or keys."""
        heads = self._biased(i, srcs).reshape(srcs[i].shape)
        norm = srcs[11 + i] if len(srcs) > 11 + i else None
        if norm is not None:
            heads = op_spec("rms_norm_mul").reference(heads, norm, eps=params["head_eps"])
        rope = {p.name: params[p.name] for p in Rope.params}
        factors = srcs[7] if len(srcs) > 7 else None
        return op_spec("rope").reference(heads, srcs[3], factors, **rope)

    def flops(self, out: Tensor) -> int:
        return 10 * sum(s.size for s in out.srcs[:3] if s is not None)

    def bytes(self, out: Tensor) -> int:
        states = [s for s in out.srcs[5:7] if s is not None]
        read = [s for s in (*out.srcs[:5], *out.srcs[7:]) if s is not None]
        written = sum(out.shape[0] * s.dtype.row_bytes(s.shape[1]) for s in states)
        return out.nbytes + sum(s.nbytes for s in read) + written

    def cases(self) -> Iterator[Case]:
        def case(
            m: int, heads: tuple[int, int], hd: int, n_dims: int, state: str, *, n_v: int = 0,
            biases: bool = False, norms: bool = False, factors: bool = False, apart: bool = False,
            mode: str = "neox",
        ) -> Case:  # fmt: skip
            """apart: heads of queries lie twice as far from each other as they are long."""
            rows = heads[0] * hd, heads[1] * hd, n_v or heads[1] * hd
            q = Operand((m, heads[0], hd), pad=(0, 0, hd) if apart else ())
            pos = Operand((m,), "i32", lambda rng, shape: rng.integers(0, 4096, shape))
            where = Operand((m,), "i32", lambda rng, shape: rng.permutation(40)[: shape[0]] - 2)
            states = (Operand((37, n), state, role="state") for n in rows[1:])
            of_bias = [Operand((n,), role="weight") if biases else None for n in rows]
            of_norm = [Operand((hd,), data=positive, role="weight") if norms else None] * 2
            f = Operand((n_dims // 2,), data=positive, role="weight") if factors else None
            params = {"head_eps": 1e-6, "n_dims": n_dims, "mode": mode}
            note = f"{m} by {heads} of {hd}, {state}" + " apart" * apart + " normed" * norms
            v = Operand((m, 1, rows[2]) if n_v else (m, heads[1], hd))
            return Case((q, Operand((m, heads[1], hd)), v, pos, where, *states, f, *of_bias,
                         *of_norm), params, note)  # fmt: skip

        for m in (1, 3, 31):
            for hd, n_dims in ((64, 64), (80, 32), (96, 96), (128, 128), (256, 64), (6, 4)):
                yield case(m, (5, 2), hd, n_dims, "f32")
                yield case(m, (3, 1), hd, n_dims, "f16", norms=True, apart=True)
                yield case(m, (2, 2), hd, n_dims, "bf16", biases=True, factors=True, mode="norm")
            yield case(m, (4, 1), 512, 512, "f16", norms=True, biases=True)
            yield case(m, (71, 1), 64, 64, "f16", n_v=50)
