"""q3_K: 256 elements in 110 bytes, 3.4375 bits an element.

Sixteen sub-blocks of 16. x = d * (scale - 32) * (q - 4), q in 0..7, scale in 0..63.

| bytes    | holds                                                                         |
|----------|-------------------------------------------------------------------------------|
| 0..31    | byte l, bit i: the third bit of element 32 * i + l                            |
| 32..95   | the low two bits, two runs of 32 bytes as in q2_K                             |
| 96..103  | byte s: low four bits of scale s in the low half, of scale s + 8 in the high  |
| 104..107 | byte s: high two bits of the scales s, s + 4, s + 8, s + 12, lowest first     |
| 108..109 | d, float16                                                                    |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import F16_MAX, Codec
from .bits import f16_column, f32_column, pack_fields, unpack_fields
from .search import search_coordinate
from .super_block import (
    dequantize_symmetric,
    importance_weights,
    quantize_elements,
    quantize_signed,
    sub_blocks,
)


class Q3_K(Codec):
    dtype = register_dtype(DType("q3_K", 11, 256, 110, np.dtype("u1")))
    limit = F16_MAX
    weighted = True

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        q = unpack_fields(blocks[:, 32:96], 32, 2) | (unpack_fields(blocks[:, :32], 32, 1) << 2)
        low = unpack_fields(blocks[:, 96:104], 8, 4)
        high = unpack_fields(blocks[:, 104:108], 4, 2)
        scale = (low | (high << 4)).astype(np.int8) - np.int8(32)
        d = f32_column(blocks[:, 108:110])
        return dequantize_symmetric(q.astype(np.int8) - np.int8(4), d, scale)

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        lanes = sub_blocks(x, 16)
        w = lanes * lanes if importance is None else importance_weights(x, importance, 16)
        d, code = quantize_signed(search_coordinate(lanes, w, 4).reshape(-1, 16), 32)
        q = quantize_elements(x, d.astype(np.float32) * code, None, -4, 3)
        scale = (code + np.int8(32)).astype(np.uint8)
        parts = [
            pack_fields(q >> 2, 32, 1),
            pack_fields(q, 32, 2),
            pack_fields(scale, 8, 4),
            pack_fields(scale >> 4, 4, 2),
            f16_column(d),
        ]
        return np.concatenate(parts, axis=-1)
