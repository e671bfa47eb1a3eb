"""mul_mat_id: a row of activations times the matrices that its ids name: the experts of a layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, I32, Case, DType, Operand, OpSpec, Shape, Tensor
from ._common import (
    FLOATS,
    GRID_QUANTS,
    QUANTS,
    TABLE_QUANTS,
    aligned_length,
    block_of,
    rows_dense,
)


def infer_mul_mat_id(spec: OpSpec, srcs: Any, w: Any, x: Any, ids: Any, bias: Any = None) -> Shape:
    """The shape of rows of x times the matrices of w that ids name. Raises `spec`'s ShapeError,
    which names all operands `srcs`."""
    if w.dtype.is_integer or len(w.shape) != 3 or not rows_dense(w) or w.shape[0] < 1:
        raise spec.fail("w must be [E, n, k] of a float or quantized type, rows dense", *srcs)
    if x.dtype is not F32 or len(x.shape) not in (2, 3) or not rows_dense(x):
        raise spec.fail("x must be f32 [m, k] or [m, u, k] with dense rows", *srcs)
    if w.shape[-1] != x.shape[-1]:
        raise spec.fail(f"inner lengths {w.shape[-1]} and {x.shape[-1]} differ", *srcs)
    if ids.dtype is not I32 or len(ids.shape) != 2 or not rows_dense(ids):
        raise spec.fail("ids must be i32 [m, u] with dense rows", *srcs)
    if ids.shape != x.shape[:-1] and ids.shape[:1] != x.shape[:-1]:
        raise spec.fail("there must be ids for every row of x", *srcs)
    if bias is not None and (bias.dtype is not F32 or bias.shape != w.shape[:2]
                             or not rows_dense(bias)):  # fmt: skip
        raise spec.fail("bias must be f32 [E, n] with dense rows", *srcs)
    return (*ids.shape, w.shape[1])


def bytes_named(w: Tensor, ids: Tensor) -> int:
    """Bytes of the matrices of w that ids may name: each is read once."""
    return w.nbytes // w.shape[0] * min(w.shape[0], ids.size)


def ids_operand(e: int, m: int, u: int, data: Any = None) -> Operand:
    """ids [m, u] of a case: `data`, or else u different ones of e experts in each row."""

    def pick(rng: np.random.Generator, shape: Shape) -> np.ndarray:
        return np.array([rng.permutation(e)[:u] for _ in range(m)])

    return Operand((m, u), "i32", pick if data is None else data)


class MulMatId(OpSpec):
    name = "mul_mat_id"
    doc = (
        "result[i, j] = w[ids[i, j]] x[i] (or x[i, j]) + bias[ids[i, j]]. An id outside [0, E) "
        "gives zeros. Kernels may round x as they do for mul_mat, a row always the same way."
    )
    operands = (
        "w any float or quantized [E, n, k]",
        "x f32 [m, k] or [m, u, k]",
        "ids i32 [m, u]",
        "bias? f32 [E, n]",
    )
    rows_of = 1
    weights = (0,)
    across = (0, 3)
    looks_up = 2
    cost = "2 m u n k"
    tolerance = 5e-4

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        return F32, infer_mul_mat_id(self, srcs, *(*srcs, None)[:4])

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        w, x, ids, bias = (*srcs, None)[:4]
        ids = ids[: len(x)]
        out = np.zeros((*ids.shape, w.shape[1]))
        x = np.broadcast_to(x if x.ndim == 3 else x[:, None], (*ids.shape, x.shape[-1]))
        for e in np.unique(ids[(ids >= 0) & (ids < len(w))]):
            y = x[ids == e].astype(np.float64) @ w[e].astype(np.float64).T
            out[ids == e] = y if bias is None else y + bias[e]
        return out.astype(np.float32)

    def flops(self, out: Tensor) -> int:
        return 2 * out.size * out.live_srcs()[0].shape[-1]

    def bytes(self, out: Tensor) -> int:
        w, *others = out.live_srcs()
        return out.nbytes + bytes_named(w, others[1]) + sum(t.nbytes for t in others)

    def cases(self) -> Iterator[Case]:
        def case(
            t: str,
            sizes: tuple[int, ...],
            k: int,
            *,
            own: bool = False,
            bias: bool = False,
            data: Any = None,
            tolerance: float | None = None,
            note: str = "",
        ) -> Case:
            """sizes: E, n, m, u. own: a row of x for each id."""
            e, n, m, u = sizes
            srcs = [
                Operand((e, n, k), t, role="weight"),
                Operand((m, u, k) if own else (m, k)),
                ids_operand(e, m, u, data),
            ]
            if bias:
                srcs.append(Operand((e, n), role="weight"))
            return Case(tuple(srcs), {}, f"{t} {e} experts {n}x{k}, {m} rows of {u} {note}",
                        tolerance)  # fmt: skip

        for t in FLOATS + QUANTS:
            block = block_of(t)
            k = 172 if block == 1 else 2 * block
            exact = 1e-7 if t == "f32" else None
            yield case(t, (4, 33, 1, 2), k, tolerance=exact)
            yield case(t, (8, 64, 1, 3), k, own=True, tolerance=exact)
            yield case(t, (8, 48, 31, 3), k, bias=True, tolerance=exact)
            yield case(t, (3, 40, 17, 2), k, own=True, tolerance=exact)
            whole = aligned_length(t, k) if block > 1 else 192
            yield case(t, (5, 130, 60, 2), whole, bias=True, tolerance=exact, note="aligned")
        for t in TABLE_QUANTS + GRID_QUANTS:
            yield case(t, (8, 48, 1, 3), 512)
            yield case(t, (8, 48, 31, 3), 256, bias=True)
            yield case(t, (3, 40, 70, 2), 512, own=True)
        yield case("f32", (5, 7, 3, 5), 31, own=True, bias=True, tolerance=1e-7, note="all")
        yield case("q4_0", (2, 16, 100, 1), 64, note="many rows an expert")
        outside = [[0, -1], [9, 2], [-1, -1]]
        yield case("f16", (3, 16, 3, 2), 32, data=outside, bias=True, note="ids outside")
        yield case("q8_0", (3, 16, 3, 2), 32, data=outside, own=True, note="ids outside")
        srcs = (
            Operand((4, 24, 64), "q8_0", role="weight"),
            Operand((5, 64), pad=(1, 9)),
            Operand((5, 2), "i32", [[0, 1], [1, 2], [2, 3], [3, 0], [1, 3]], pad=(0, 3)),
        )
        yield Case(srcs, note="views")
