"""iq1_m: 256 elements in 56 bytes, 1.75 bits an element.

Sixteen sub-blocks of 16 elements, two rows of the grid iq1 of -1, 0 and 1.
x = d * (1 + 2 * scale) * (row + delta), scale in 0..7, delta 1/8 or -1/8 a row.

| bytes  | holds                                                                           |
|--------|---------------------------------------------------------------------------------|
| 0..31  | low eight bits of row i                                                         |
| 32..47 | byte i, low half: three high bits of row 2 i, and a bit that is set where its   |
|        | delta is negative; high half: of row 2 i + 1                                    |
| 48..55 | four words of 16 bits: three times four bits, the scales of four sub-blocks,    |
|        | and at the top four bits of d, a float16, lowest first                          |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import Codec
from .grids import grid_rows
from .iq1_s import DELTA

_F = np.float32


class IQ1_M(Codec):
    dtype = register_dtype(DType("iq1_m", 29, 256, 56, np.dtype("u1")))
    writable = False

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        words = blocks[:, 48:].copy().view(np.dtype("<u2"))
        parts = (words >> 12) << np.array([0, 4, 8, 12], np.uint16)
        d = np.bitwise_or.reduce(parts, axis=-1, keepdims=True).view(np.float16).astype(_F)
        code = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 16)
        scale = (d * (2 * code + 1).astype(_F))[:, :, None, None]
        high = np.stack([blocks[:, 32:48] & 15, blocks[:, 32:48] >> 4], axis=-1)
        row = blocks[:, :32].reshape(-1, 16, 2) | (high & 7).astype(np.uint16) << 8
        delta = np.where(high & 8, -DELTA, DELTA)[..., None]
        x: np.ndarray = scale * (grid_rows("iq1")[row] + delta)
        return x.reshape(-1, 256)
