"""q4_1: 32 elements in 20 bytes, 5 bits an element. x = d * q + m, q in 0..15.

| bytes | holds                                                               |
|-------|---------------------------------------------------------------------|
| 0..1  | d, float16: a fifteenth of the block's range                        |
| 2..3  | m, float16: the block's minimum                                     |
| 4..19 | byte j: q of element j in the low half, of element j + 16 in the high |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import F16_MAX, Codec
from .bits import f16_column, f32_column, inverse, least_and_most, pack_fields, unpack_fields


class Q4_1(Codec):
    dtype = register_dtype(DType("q4_1", 3, 32, 20, np.dtype("u1")))
    limit = F16_MAX

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        q = unpack_fields(blocks[:, 4:], 16, 4)
        x: np.ndarray = f32_column(blocks[:, :2]) * q + f32_column(blocks[:, 2:4])
        return x

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        least, most = least_and_most(x)
        d = (most - least) / np.float32(15)
        q = np.trunc((x - least) * inverse(d) + np.float32(0.5)).clip(0, 15)
        return np.concatenate([f16_column(d), f16_column(least), pack_fields(q, 16, 4)], axis=-1)
