"""q8_0: 32 elements in 34 bytes, 8.5 bits an element. x = d * q, q in -127..127.

| bytes | holds                                              |
|-------|----------------------------------------------------|
| 0..1  | d, float16: the largest magnitude, divided by 127  |
| 2..33 | q of element j, a signed byte                      |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import F16_MAX, Codec
from .bits import f16_column, f32_column, inverse


class Q8_0(Codec):
    dtype = register_dtype(DType("q8_0", 8, 32, 34, np.dtype("u1")))
    limit = 127 * F16_MAX

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        return f32_column(blocks[:, :2]) * blocks[:, 2:].view(np.int8)

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
        v = x * inverse(d)
        a = np.abs(v)
        whole = np.floor(a)
        q = np.copysign(whole + (a - whole >= 0.5), v)  # half away from zero, as C's roundf
        return np.concatenate([f16_column(d), q.astype(np.int8).view(np.uint8)], axis=-1)
