"""iq1_s: 256 elements in 50 bytes, 1.5625 bits an element.

Eight sub-blocks of 32 elements, four rows of the grid iq1 of -1, 0 and 1.
x = d * (1 + 2 * scale) * (row + delta), scale in 0..7, delta 1/8 or -1/8.

| bytes  | holds                                                                           |
|--------|---------------------------------------------------------------------------------|
| 0..1   | d, float16                                                                      |
| 2..33  | low eight bits of row i                                                         |
| 34..49 | for each sub-block 16 bits: three times four high bits of its rows, the scale,  |
|        | and a bit that is set where delta is negative                                   |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import Codec
from .bits import f32_column
from .grids import grid_rows

_F = np.float32
DELTA = _F(0.125)


class IQ1_S(Codec):
    dtype = register_dtype(DType("iq1_s", 19, 256, 50, np.dtype("u1")))
    writable = False

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        head = blocks[:, 34:].copy().view(np.dtype("<u2"))
        high = head[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7
        row = blocks[:, 2:34].reshape(-1, 8, 4) | high << 8
        d = f32_column(blocks[:, :2]) * (2 * (head >> 12 & 7) + 1).astype(_F)
        delta = np.where(head & 0x8000, -DELTA, DELTA)[:, :, None, None]
        x: np.ndarray = d[:, :, None, None] * (grid_rows("iq1")[row] + delta)
        return x.reshape(-1, 256)
