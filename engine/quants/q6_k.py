"""q6_K: 256 elements in 210 bytes, 6.5625 bits an element.

Sixteen sub-blocks of 16. x = d * scale * (q - 32), q in 0..63, scale in -128..127.

| bytes    | holds                                                                        |
|----------|------------------------------------------------------------------------------|
| 0..127   | the low four bits, two runs of 64 bytes, one for each 128 elements: byte l   |
|          | holds element l in the low half and element l + 64 in the high               |
| 128..191 | the high two bits, two runs of 32 bytes as in q2_K                           |
| 192..207 | scale of sub-block s, a signed byte                                          |
| 208..209 | d, float16                                                                   |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import F16_MAX, Codec
from .bits import f16_column, f32_column, pack_fields, unpack_fields
from .search import search_symmetric
from .super_block import (
    dequantize_symmetric,
    importance_weights,
    quantize_elements,
    quantize_signed,
    sub_blocks,
)


class Q6_K(Codec):
    dtype = register_dtype(DType("q6_K", 14, 256, 210, np.dtype("u1")))
    limit = F16_MAX
    weighted = True

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        q = unpack_fields(blocks[:, :128], 64, 4) | (unpack_fields(blocks[:, 128:192], 32, 2) << 4)
        d = f32_column(blocks[:, 208:210])
        scale = blocks[:, 192:208].view(np.int8)
        return dequantize_symmetric(q.astype(np.int8) - np.int8(32), d, scale)

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        lanes = sub_blocks(x, 16)
        w = lanes * lanes if importance is None else importance_weights(x, importance, 16)
        d, scale = quantize_signed(search_symmetric(lanes, w, 32).reshape(-1, 16), 128)
        q = quantize_elements(x, d.astype(np.float32) * scale, None, -32, 31)
        parts = [
            pack_fields(q, 64, 4),
            pack_fields(q >> 4, 32, 2),
            scale.view(np.uint8),
            f16_column(d),
        ]
        return np.concatenate(parts, axis=-1)
