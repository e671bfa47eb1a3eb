"""nvfp4: 64 elements in 36 bytes, 4.5 bits an element. x = scale / 2 * FP4_VALUES[q].

Four sub-blocks of 16 FP4 E2M1 elements; a sub-block's scale is an FP8 E4M3 without a sign. What
NVIDIA's checkpoints have besides, a float32 scale a tensor, GGUF holds as a tensor of its own.

| bytes | holds                                                                               |
|-------|-------------------------------------------------------------------------------------|
| 0..3  | scale of sub-block s; 0x7F (E4M3's NaN) counts as zero                              |
| 4..35 | four runs of 8 bytes: byte j has q of element j (low half) and of element j + 8     |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import Codec
from .codebook import FP4_VALUES, nearest_fp4, pack_codes, values_of

_F = np.float32
MAX_SCALE = 448.0  # of E4M3


def half_e4m3(b: np.ndarray) -> np.ndarray:
    """Half the E4M3 number of uint8, as float32: the bits are those of a float16 times 2^8."""
    half = ((b & np.uint8(0x7F)).astype(np.uint16) << 7).view(np.float16)
    return np.where(b == 0x7F, _F(0), half.astype(_F) * _F(128))


def to_e4m3(x: np.ndarray) -> np.ndarray:
    """float32, not negative -> E4M3 uint8; halves round up, what is too large becomes 448."""
    x = np.minimum(x, _F(MAX_SCALE))
    bits = x.view(np.uint32)
    rounded = ((bits >> 20) + (bits >> 19 & 1)).astype(np.int64) - (120 << 3)
    tiny = np.minimum((x * _F(512) + _F(0.5)).astype(np.int64), 7)
    code = np.where((bits >> 23) <= 120, tiny, np.minimum(rounded, 0x7E))
    return np.where(x > 0, code, 0).astype(np.uint8)


class NVFP4(Codec):
    dtype = register_dtype(DType("nvfp4", 40, 64, 36, np.dtype("u1")))
    limit = 6 * MAX_SCALE

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        q = values_of(blocks[:, 4:], FP4_VALUES, 8).reshape(-1, 4, 16)
        x: np.ndarray = half_e4m3(blocks[:, :4])[:, :, None] * q
        return x.reshape(-1, 64)

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        rows = x.reshape(-1, 16)
        scale = to_e4m3(np.abs(rows).max(axis=-1, keepdims=True) / _F(6))
        q = nearest_fp4(rows, half_e4m3(scale))
        return np.concatenate([scale.reshape(-1, 4), pack_codes(q.reshape(-1, 64), 8)], axis=-1)
