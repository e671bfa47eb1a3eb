"""mxfp4: 32 elements in 17 bytes, 4.25 bits an element. x = 2^(e - 128) * FP4_VALUES[q].

The OCP's MXFP4: FP4 E2M1 elements under a common power of two. The values are doubled and the power
halved, so that the values are whole.

| bytes | holds                                                                 |
|-------|-----------------------------------------------------------------------|
| 0     | e                                                                     |
| 1..16 | byte j: q of element j in the low half, of element j + 16 in the high |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import Codec
from .codebook import FP4_VALUES, nearest_fp4, pack_codes, values_of


def half_power(e: np.ndarray) -> np.ndarray:
    """2^(e - 128) of uint8, as float32; the two least are subnormal."""
    e = e.astype(np.uint32)
    tiny = np.uint32(0x200000) << np.minimum(e, 1)
    return np.where(e < 2, tiny, (np.maximum(e, 1) - 1) << 23).astype(np.uint32).view(np.float32)


class MXFP4(Codec):
    dtype = register_dtype(DType("mxfp4", 39, 32, 17, np.dtype("u1")))
    limit = float(np.finfo(np.float32).max)

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        x: np.ndarray = half_power(blocks[:, :1]) * values_of(blocks[:, 1:], FP4_VALUES)
        return x

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        most = np.abs(x).max(axis=-1, keepdims=True).astype(np.float64)
        power = np.floor(np.log2(most).astype(np.float32)) + np.float32(125)
        e = np.where(most > 0, power.clip(0, 254), np.float32(0)).astype(np.uint8)
        return np.concatenate([e, pack_codes(nearest_fp4(x, half_power(e)))], axis=-1)
