"""all_reduce_norm: a sum of several devices' parts on a residual of which each has a share of the
rows, and its norm, for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Param, Shape, Tensor, op_spec
from ._common import rows_dense
from .all_reduce import DEVICES


class AllReduceNorm(OpSpec):
    name = "all_reduce_norm"
    doc = (
        "x = r + (part_0 + part_1 + ...), where r_0, r_1, ... are r's rows one after the other. "
        "The result is x without w; else rms_norm_mul(x, w), and below it the rows of x that r_k "
        "has, k being `rank`. Over several devices every one has such a node and made one of the "
        "parts and that share of r; what it needs of the others comes to it while it runs."
    )
    operands = (
        "w? f32 [d]",
        "r_0 f32 [m_0, d]",
        "part_0 f32 [m, d]; m is the sum of m_0, m_1, ...",
        *(f"{name}? f32, likewise" for k in range(1, DEVICES) for name in (f"r_{k}", f"part_{k}")),
    )
    params = (Param("rank", "i", doc="k"), Param("eps", "f", 0.0, doc="added to the mean square"))
    cost = "1 an element of all parts, 5 an element of x with w"
    fused_from = ("all_reduce", "add", "rms_norm_mul")
    exchanges = 1
    exchanges_each = 2
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        w, *given = srcs
        given = [t for t in given if t is not None]
        rs, parts = given[::2], given[1::2]
        for t in given:
            if t.dtype is not F32 or len(t.shape) != 2 or not t.is_contiguous:
                raise self.fail("rows and parts must be dense f32 [m, d]", *srcs)
        m, d = given[1].shape if len(given) > 1 else (0, 0)
        same = len(rs) == len(parts) and all(p.shape == (m, d) for p in parts)
        if not same or any(r.shape[1] != d for r in rs) or sum(r.shape[0] for r in rs) != m:
            raise self.fail("parts must be of one shape, whose rows the r_k share", *srcs)
        if w is not None and (w.dtype is not F32 or w.shape != (d,) or not rows_dense(w)):
            raise self.fail("w must be dense f32 [d]", *srcs)
        if not 0 <= params["rank"] < len(rs):
            raise self.fail(f"rank must be one of {len(rs)}", *srcs)
        return F32, (m if w is None else m + rs[params["rank"]].shape[0], d)

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        w, *given = srcs
        given = [t for t in given if t is not None]
        rs, parts = given[::2], given[1::2]
        x = op_spec("add").reference(reduce(np.add, parts), np.concatenate(rs))
        if w is None:
            return x
        rank, first = params["rank"], sum(len(r) for r in rs[: params["rank"]])
        normed = op_spec("rms_norm_mul").reference(x, w, eps=params["eps"])
        return np.concatenate([normed, x[first : first + len(rs[rank])]])

    def flops(self, out: Tensor) -> int:
        w, *given = out.srcs
        parts = [t for t in given if t is not None][1::2]
        return (len(parts) + (0 if w is None else 5)) * parts[0].size

    def cases(self) -> Iterator[Case]:
        def case(d: int, shares: tuple[int, ...], rank: int, with_w: bool = True) -> Case:
            part = Operand((sum(shares), d))
            given = (o for n in shares for o in (Operand((n, d)), part))
            w = Operand((d,), role="weight") if with_w else None
            note = f"{'+'.join(map(str, shares))}x{d}, rank {rank}{'' if with_w else ', no norm'}"
            return Case((w, *given), {"rank": rank, "eps": 1e-5}, note)

        yield case(64, (2, 3), 0)
        yield case(4096, (3, 3), 1)
        yield case(172, (1, 1, 1), 2)
        yield case(5376, (2, 1, 2, 1), 1)
        yield case(8192, (1,) * 8, 5)
        yield case(31, (3, 2), 1)
        yield case(4096, (2, 2), 0, with_w=False)
        yield case(64, (4, 3, 4), 2, with_w=False)
