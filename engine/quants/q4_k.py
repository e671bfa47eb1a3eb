"""q4_K: 256 elements in 144 bytes, 4.5 bits an element.

Eight sub-blocks of 32. x = d * scale * q - dmin * min, q in 0..15, scale and min in 0..63.

| bytes   | holds                                                                        |
|---------|------------------------------------------------------------------------------|
| 0..1    | d, float16                                                                   |
| 2..3    | dmin, float16                                                                |
| 4..7    | byte s: scale s in the low six bits, high two bits of scale s + 4 above      |
| 8..11   | byte s: min s in the low six bits, high two bits of min s + 4 above          |
| 12..15  | byte s: low four bits of scale s + 4 in the low half, of min s + 4 in the high |
| 16..143 | four runs of 32 bytes, one for each 64 elements: byte l holds element l in   |
|         | the low half and element l + 32 in the high                                  |
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
    rms,
    sub_blocks,
)

_SEARCH = AffineSearch(15, -1.0, 0.1, 21)


def unpack_header(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """First 16 bytes, q5_K's as well -> d [m, 1], scales [m, 8], dmin [m, 1], mins [m, 8]."""
    top, bottom = blocks[:, 4:12], blocks[:, 12:16]
    first = (top & 63).reshape(-1, 2, 4)  # scales 0..3, mins 0..3
    low = np.stack([bottom & 15, bottom >> 4], axis=1)
    last = low | (top.reshape(-1, 2, 4) >> 6 << 4)
    scale, minimum = np.moveaxis(np.concatenate([first, last], axis=-1), 1, 0)
    return f32_column(blocks[:, :2]), scale, f32_column(blocks[:, 2:4]), minimum


def pack_header(
    d: np.ndarray, scale: np.ndarray, dmin: np.ndarray, minimum: np.ndarray
) -> np.ndarray:
    """The inverse of `unpack_header`: uint8 [m, 16]."""
    top = [v[:, :4] | (v[:, 4:] >> 4 << 6) for v in (scale, minimum)]
    bottom = (scale[:, 4:] & 15) | (minimum[:, 4:] << 4)
    return np.concatenate([f16_column(d), f16_column(dmin), *top, bottom], axis=-1)


def quantize_k4(
    x: np.ndarray, importance: np.ndarray | None, search: AffineSearch
) -> tuple[np.ndarray, np.ndarray]:
    """What q4_K and q5_K share: the header uint8 [m, 16] and the codes uint8 [m, 256]."""
    v = sub_blocks(x, 32)
    w = rms(v) + np.abs(v) if importance is None else importance_weights(x, importance, 32)
    scale, minimum = (s.reshape(-1, 8) for s in search(v, w))
    d, scale_code = quantize_unsigned(scale, 63)
    dmin, min_code = quantize_unsigned(minimum, 63)
    q = quantize_elements(
        x, d.astype(np.float32) * scale_code, dmin.astype(np.float32) * min_code, 0, search.top
    )
    return pack_header(d, scale_code, dmin, min_code), q


class Q4_K(Codec):
    dtype = register_dtype(DType("q4_K", 12, 256, 144, np.dtype("u1")))
    limit = F16_MAX
    weighted = True

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        return dequantize_affine(unpack_fields(blocks[:, 16:], 32, 4), *unpack_header(blocks))

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        header, q = quantize_k4(x, importance, _SEARCH)
        return np.concatenate([header, pack_fields(q, 32, 4)], axis=-1)
