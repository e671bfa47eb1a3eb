"""q5_1: 32 elements in 24 bytes, 6 bits an element. x = d * q + m, q in 0..31.

| bytes | holds                                                                     |
|-------|---------------------------------------------------------------------------|
| 0..1  | d, float16: a thirty-first of the block's range                           |
| 2..3  | m, float16: the block's minimum                                           |
| 4..7  | bit j of this little-endian word: the fifth bit of element j              |
| 8..23 | byte j: low bits of element j in the low half, of element j + 16 in the high |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import F16_MAX, Codec
from .bits import f16_column, f32_column, inverse, least_and_most
from .q5_0 import pack_five, unpack_five


class Q5_1(Codec):
    dtype = register_dtype(DType("q5_1", 7, 32, 24, np.dtype("u1")))
    limit = F16_MAX

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        q = unpack_five(blocks[:, 4:])
        x: np.ndarray = f32_column(blocks[:, :2]) * q + f32_column(blocks[:, 2:4])
        return x

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        least, most = least_and_most(x)
        d = (most - least) / np.float32(31)
        q = np.trunc((x - least) * inverse(d) + np.float32(0.5)).clip(0, 31)
        return np.concatenate([f16_column(d), f16_column(least), pack_five(q)], axis=-1)
