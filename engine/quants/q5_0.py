"""q5_0: 32 elements in 22 bytes, 5.5 bits an element. x = d * (q - 16), q in 0..31.

| bytes | holds                                                                     |
|-------|---------------------------------------------------------------------------|
| 0..1  | d, float16; the element of largest magnitude becomes q = 0 exactly        |
| 2..5  | bit j of this little-endian word: the fifth bit of element j              |
| 6..21 | byte j: low bits of element j in the low half, of element j + 16 in the high |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import F16_MAX, Codec
from .bits import f16_column, f32_column, inverse, largest, pack_fields, unpack_fields


def unpack_five(raw: np.ndarray) -> np.ndarray:
    """The 20 bytes of fifth bits and low bits -> codes uint8 [m, 32]. q5_1 has the same."""
    high = np.unpackbits(raw[:, :4], axis=-1, bitorder="little")
    q: np.ndarray = unpack_fields(raw[:, 4:], 16, 4) | (high << 4)
    return q


def pack_five(q: np.ndarray) -> np.ndarray:
    """Codes [m, 32] in 0..31 -> uint8 [m, 20]."""
    high = np.packbits(q.astype(np.uint8) >> 4, axis=-1, bitorder="little")
    return np.concatenate([high, pack_fields(q, 16, 4)], axis=-1)


class Q5_0(Codec):
    dtype = register_dtype(DType("q5_0", 6, 32, 22, np.dtype("u1")))
    limit = 16 * F16_MAX

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        q = unpack_five(blocks[:, 2:]).astype(np.int8) - np.int8(16)
        x: np.ndarray = f32_column(blocks[:, :2]) * q
        return x

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        d = largest(x) / np.float32(-16)
        q = np.trunc(x * inverse(d) + np.float32(16.5)).clip(0, 31)
        return np.concatenate([f16_column(d), pack_five(q)], axis=-1)
