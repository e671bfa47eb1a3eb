"""tq2_0: 256 elements in 66 bytes, 2.0625 bits an element. x = d * (q - 1), q in 0..2.

For ternary models (BitNet b1.58): what is not -d, 0 or d is rounded to one of them.

| bytes  | holds                                                                        |
|--------|------------------------------------------------------------------------------|
| 0..63  | two runs of 32 bytes as in q2_K                                              |
| 64..65 | d, float16: the largest magnitude                                            |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import F16_MAX, Codec
from .bits import f16_column, f32_column, inverse, pack_fields, unpack_fields


def ternary(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(d float32 [m, 1], codes uint8 [m, n] in 0..2) of blocks [m, n]; halves go away from zero."""
    d = np.abs(x).max(axis=-1, keepdims=True)
    v = x * inverse(d)
    return d, (np.where(np.abs(v) >= 0.5, np.sign(v), 0) + 1).astype(np.uint8)


class TQ2_0(Codec):
    dtype = register_dtype(DType("tq2_0", 35, 256, 66, np.dtype("u1")))
    limit = F16_MAX

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        q = unpack_fields(blocks[:, :64], 32, 2).astype(np.int8) - np.int8(1)
        x: np.ndarray = f32_column(blocks[:, 64:66]) * q
        return x

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        d, q = ternary(x)
        return np.concatenate([pack_fields(q, 32, 2), f16_column(d)], axis=-1)
