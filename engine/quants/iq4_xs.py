"""iq4_xs: 256 elements in 136 bytes, 4.25 bits an element.

Eight sub-blocks of 32. x = d * (scale - 32) * IQ4_VALUES[q], scale in 0..63.

| bytes  | holds                                                                        |
|--------|------------------------------------------------------------------------------|
| 0..1   | d, float16                                                                   |
| 2..3   | the high two bits of the scale of sub-block s, at bit 2 s                    |
| 4..7   | byte i: the low four bits of the scales of sub-blocks 2 i (low half), 2 i + 1 |
| 8..135 | eight runs of 16 bytes as in iq4_nl                                          |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import F16_MAX, Codec
from .bits import f16_column, f32_column, inverse
from .codebook import (
    IQ4_VALUES,
    iq4_weights,
    nearest_iq4,
    pack_codes,
    search_iq4,
    values_of,
)
from .search import round_within
from .super_block import dequantize_symmetric, sub_blocks

_F = np.float32
_SHIFTS = np.arange(0, 16, 2, dtype=np.uint16)


class IQ4_XS(Codec):
    dtype = register_dtype(DType("iq4_xs", 23, 256, 136, np.dtype("u1")))
    limit = F16_MAX
    weighted = True

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        high = blocks[:, 2:4].copy().view(np.dtype("<u2")) >> _SHIFTS & 3
        low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=-1).reshape(-1, 8)
        scale = (low | high << 4).astype(np.int8) - np.int8(32)
        q = values_of(blocks[:, 8:], IQ4_VALUES)
        return dequantize_symmetric(q, f32_column(blocks[:, :2]), scale)

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        w = x * x if importance is None else iq4_weights(x, importance)
        scales = search_iq4(sub_blocks(x, 32), sub_blocks(w, 32)).reshape(-1, 8)
        most = np.take_along_axis(scales, np.abs(scales).argmax(-1, keepdims=True), axis=-1)
        d = -most / _F(32)
        code = round_within(inverse(d) * scales, -32, 31)
        each = inverse(d * code)
        q = nearest_iq4(each[:, :, None] * x.reshape(-1, 8, 32)).reshape(-1, 256)
        code = (code + 32).astype(np.uint16)
        high = np.bitwise_or.reduce(code >> 4 << _SHIFTS, axis=-1, keepdims=True)
        low = (code[:, 0::2] & 15 | (code[:, 1::2] & 15) << 4).astype(np.uint8)
        head = [f16_column(d), high.astype(np.dtype("<u2")).view(np.uint8), low]
        return np.concatenate([*head, pack_codes(q)], axis=-1)
