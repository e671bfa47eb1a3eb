"""cpy and cont: a dense copy of a tensor, in another type or the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import Case, DType, Operand, OpSpec, Param, Shape, Tensor, dtype_by_id
from ._common import FLOATS, GRID_QUANTS, QUANTS, ROUNDED, TABLE_QUANTS, block_of

# GGUF's type numbers, for the cases; `infer` asks the registry.
_IDS = {
    **{"f32": 0, "f16": 1, "bf16": 30, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8},
    **{"q2_K": 10, "q3_K": 11, "q4_K": 12, "q5_K": 13, "q6_K": 14, "iq4_nl": 20, "iq4_xs": 23},
    **{"tq1_0": 34, "tq2_0": 35, "mxfp4": 39, "nvfp4": 40},
}


class Cpy(OpSpec):
    name = "cpy"
    doc = (
        "x converted to a type, dense. Floats round to nearest even; quantized types as their "
        "quantizer in the registry of types does."
    )
    operands = ("x any float or quantized",)
    rows_of = 0
    params = (Param("type", "i", doc="GGUF number of the result's type"),)

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        (x,) = srcs
        to = dtype_by_id(params["type"])
        if to is None:
            raise self.fail(f"type={params['type']} is no known type", x)
        if to.name in GRID_QUANTS and to is not x.dtype:
            raise self.fail(f"nothing is converted to {to.name}", x)
        if to.is_integer or x.dtype.is_integer:
            raise self.fail(f"cannot convert {x.dtype.name} to {to.name}", x)
        if not x.shape or x.shape[-1] % to.block:
            raise self.fail(f"rows are no multiple of {to.name}'s block of {to.block}", x)
        return to, x.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        return srcs[0].copy()

    def cases(self) -> Iterator[Case]:
        for t, number in _IDS.items():
            n = 31 if block_of(t) == 1 else 3 * block_of(t)
            for src in FLOATS:
                yield Case((Operand((3, n), src),), {"type": number}, f"{src} to {t}", ROUNDED[t])
            to = {"type": number}
            yield Case((Operand((2, 5, n), pad=(1, 1, 7)),), to, f"view to {t}", ROUNDED[t])
            swap = Operand((5, 2, n), permute=(1, 0, 2))
            yield Case((swap,), to, f"permuted to {t}", ROUNDED[t])
            yield Case((Operand((5, n), permute=(1, 0)),), to, f"transposed to {t}", ROUNDED[t])
            zeros = Operand((2, n), data=lambda rng, s: rng.standard_normal(s) * [[0], [1]])
            yield Case((zeros,), to, f"zeros to {t}", ROUNDED[t])
        for t in QUANTS + TABLE_QUANTS + GRID_QUANTS:
            x = Operand((3, 2 * block_of(t)), t)
            yield Case((x,), {"type": 0}, f"{t} to f32")
        yield Case((Operand((3, 64), "q4_0"),), {"type": 8}, "q4_0 to q8_0", ROUNDED["q8_0"])
        edges = [-0.0, 65504.0, 65519.0, 1e-8, 6e-8, 1 + 2**-11, 1 + 3 * 2**-11, -np.inf]
        yield Case((Operand((8,), data=edges),), {"type": 1}, "f16 edges", 0.0)
        edges = [-0.0, 3.3e38, 1e-40, 1 + 2**-8, 1 + 3 * 2**-8, -np.inf, np.inf, 1.0]
        yield Case((Operand((8,), data=edges),), {"type": 30}, "bf16 edges", 0.0)


class Cont(OpSpec):
    name = "cont"
    doc = "x made dense, type and values kept to the bit."
    operands = ("x any type but quantized",)
    rows_of = 0
    cost = "0"
    tolerance = 0.0

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        (x,) = srcs
        if x.dtype.is_quantized:
            raise self.fail(f"{x.dtype.name} is quantized", x)
        return x.dtype, x.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        return srcs[0].copy()

    def flops(self, out: Tensor) -> int:
        return 0

    def cases(self) -> Iterator[Case]:
        for t in (*FLOATS, "i32"):
            data = (lambda rng, s: rng.integers(-99, 99, s)) if t == "i32" else None
            yield Case((Operand((1,), t, data),), note=f"{t} one")
            yield Case((Operand((172, 3), t, data, permute=(1, 0)),), note=f"{t} transposed")
            yield Case((Operand((2, 3, 5, 31), t, data, permute=(3, 1, 0, 2)),), note=f"{t} 4d")
            yield Case((Operand((3, 31), t, data, pad=(2, 5)),), note=f"{t} view")
            batches = Operand((2, 67, 35), t, data, permute=(0, 2, 1), pad=(0, 3, 1))
            yield Case((batches,), note=f"{t} transposed batches")
            yield Case((Operand((5, 3, 64), t, data, permute=(1, 0, 2)),), note=f"{t} heads")
