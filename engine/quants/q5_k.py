"""q5_K: 256 elements in 176 bytes, 5.5 bits an element.

Eight sub-blocks of 32. x = d * scale * q - dmin * min, q in 0..31, scale and min in 0..63.

| bytes   | holds                                                                  |
|---------|------------------------------------------------------------------------|
| 0..15   | d, dmin, scales and mins as in q4_K                                    |
| 16..47  | byte l, bit s: the fifth bit of element l of sub-block s               |
| 48..175 | the low four bits, four runs of 32 bytes as in q4_K                    |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import F16_MAX, Codec
from .bits import pack_fields, unpack_fields
from .q4_k import quantize_k4, unpack_header
from .search import AffineSearch
from .super_block import dequantize_affine

_SEARCH = AffineSearch(31, -0.5, 0.1, 16)


class Q5_K(Codec):
    dtype = register_dtype(DType("q5_K", 13, 256, 176, np.dtype("u1")))
    limit = F16_MAX
    weighted = True

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        q = unpack_fields(blocks[:, 48:], 32, 4) | (unpack_fields(blocks[:, 16:48], 32, 1) << 4)
        return dequantize_affine(q, *unpack_header(blocks))

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        header, q = quantize_k4(x, importance, _SEARCH)
        return np.concatenate([header, pack_fields(q >> 4, 32, 1), pack_fields(q, 32, 4)], axis=-1)
