"""all_reduce: the sum of what several devices made, for each of them; and added to a residual."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np

from ..graph import F32, Case, DType, Operand, OpSpec, Shape, Tensor, op_spec

DEVICES = 8  # at most
_CASES = (1, (3,)), (2, (1, 4096)), (3, (5, 31)), (8, (2, 3, 7)), (2, (129, 130))


class AllReduce(OpSpec):
    name = "all_reduce"
    doc = (
        "parts[0] + parts[1] + ..., in their order. Over several devices every one has such a node "
        "and made one of the parts; the others' come to it while it runs."
    )
    operands = ("part f32", *(f"part_{k}? f32, of that shape" for k in range(1, DEVICES)))
    cost = "1 an element of all parts but one"
    in_place = tuple(range(DEVICES))
    rows_of = 0
    exchanges = 0
    optional = True

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        for s in srcs:
            if s.dtype is not F32 or s.shape != srcs[0].shape or not s.is_contiguous:
                raise self.fail("operands must be dense f32 of one shape", *srcs)
        return F32, srcs[0].shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        return reduce(np.add, srcs)

    def flops(self, out: Tensor) -> int:
        return (len(out.live_srcs()) - 1) * out.size

    def cases(self) -> Iterator[Case]:
        for n, shape in _CASES:
            yield Case((Operand(shape),) * n, note=f"{n} parts")


class AllReduceAdd(AllReduce):
    name = "all_reduce_add"
    doc = "all_reduce(parts) + r, with r a residual of their shape, each device's own."
    operands = ("r f32", "part f32, of that shape",
                *(f"part_{k}? f32, of that shape" for k in range(1, DEVICES)))  # fmt: skip
    cost = "1 an element of all parts"
    in_place = tuple(range(1 + DEVICES))
    rows_of = 1
    fused_from = ("all_reduce", "add")
    exchanges = 1

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        r, *parts = srcs
        return op_spec("add").reference(op_spec("all_reduce").reference(*parts), r)

    def cases(self) -> Iterator[Case]:
        for n, shape in _CASES:
            yield Case((Operand(shape),) * (1 + n), note=f"{n} parts")
