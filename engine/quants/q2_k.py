"""q2_K: 256 elements in 84 bytes, 2.625 bits an element.

Sixteen sub-blocks of 16. x = d * scale * q - dmin * min, q in 0..3, scale and min in 0..15.

| bytes  | holds                                                                         |
|--------|-------------------------------------------------------------------------------|
| 0..15  | sub-block s: scale in the low half, min in the high half                      |
| 16..79 | two runs of 32 bytes, one for each 128 elements: byte l holds the two bits of |
|        | elements l, l + 32, l + 64, l + 96, lowest first                              |
| 80..81 | d, float16                                                                    |
| 82..83 | dmin, float16                                                                 |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import F16_MAX, Codec
from .bits import f16_column, f32_column, pack_fields, unpack_fields
from .search import AffineSearch
from .super_block import (
    dequantize_affine,
    importance_weights,
    quantize_elements,
    quantize_unsigned,
    sub_blocks,
)

# Absolute errors: with four codes, squares would let one outlier take the scale of its sub-block.
_SEARCH = AffineSearch(3, -0.5, 0.1, 16, absolute=True)


class Q2_K(Codec):
    dtype = register_dtype(DType("q2_K", 10, 256, 84, np.dtype("u1")))
    limit = F16_MAX
    weighted = True

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        q = unpack_fields(blocks[:, 16:80], 32, 2)
        d, dmin = f32_column(blocks[:, 80:82]), f32_column(blocks[:, 82:84])
        return dequantize_affine(q, d, blocks[:, :16] & 15, dmin, blocks[:, :16] >> 4)

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        lanes = sub_blocks(x, 16)
        w = np.abs(lanes) if importance is None else importance_weights(x, importance, 16)
        scale, minimum = (v.reshape(-1, 16) for v in _SEARCH(lanes, w))
        d, scale_code = quantize_unsigned(scale, 15)
        dmin, min_code = quantize_unsigned(minimum, 15)
        q = quantize_elements(
            x, d.astype(np.float32) * scale_code, dmin.astype(np.float32) * min_code, 0, 3
        )
        scales = scale_code | (min_code << 4)
        return np.concatenate(
            [scales, pack_fields(q, 32, 2), f16_column(d), f16_column(dmin)], axis=-1
        )
