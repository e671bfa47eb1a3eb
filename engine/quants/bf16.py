"""bf16: the upper half of a float32.

| bytes | holds                                       |
|-------|---------------------------------------------|
| 0..1  | sign, 8 exponent bits, 7 bits of mantissa   |

Rounds to nearest even; NaN stays NaN (made quiet), inf stays inf.
"""

from __future__ import annotations

import numpy as np

from ..graph import BF16
from .base import Codec


class Bf16(Codec):
    dtype = BF16

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        return (blocks.view(np.dtype("<u2")).astype(np.uint32) << 16).view(np.float32)

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        u = x.view(np.uint32)
        rounded = (u + (np.uint32(0x7FFF) + ((u >> 16) & 1))) >> 16
        nan = (u & np.uint32(0x7FFFFFFF)) > 0x7F800000
        return np.where(nan, (u >> 16) | 0x40, rounded).astype(np.dtype("<u2")).view(np.uint8)
