"""q4_0: 32 elements in 18 bytes, 4.5 bits an element. x = d * (q - 8), q in 0..15.

| bytes | holds                                                               |
|-------|---------------------------------------------------------------------|
| 0..1  | d, float16; the element of largest magnitude becomes q = 0 exactly  |
| 2..17 | byte j: q of element j in the low half, of element j + 16 in the high |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import F16_MAX, Codec
from .bits import f16_column, f32_column, inverse, largest, pack_fields, unpack_fields


class Q4_0(Codec):
    dtype = register_dtype(DType("q4_0", 2, 32, 18, np.dtype("u1")))
    limit = 8 * F16_MAX

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        q = unpack_fields(blocks[:, 2:], 16, 4).astype(np.int8) - np.int8(8)
        x: np.ndarray = f32_column(blocks[:, :2]) * q
        return x

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        d = largest(x) / np.float32(-8)
        q = np.trunc(x * inverse(d) + np.float32(8.5)).clip(0, 15)
        return np.concatenate([f16_column(d), pack_fields(q, 16, 4)], axis=-1)
