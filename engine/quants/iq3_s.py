"""iq3_s: 256 elements in 110 bytes, 3.4375 bits an element.

Eight sub-blocks of 32 elements, eight rows of four of the grid iq3_s.
x = d * (1 + 2 * scale) * row * sign, scale in 0..15.

| bytes    | holds                                                            |
|----------|------------------------------------------------------------------|
| 0..1     | d, float16                                                       |
| 2..65    | low eight bits of row i                                          |
| 66..73   | the ninth bit of row i at bit i % 8 of byte i / 8                |
| 74..105  | signs of elements 8 i to 8 i + 7                                 |
| 106..109 | scales of sub-blocks 2 i (low half of a byte) and 2 i + 1        |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import Codec
from .bits import f32_column
from .grids import grid_rows, signs

_F = np.float32


class IQ3_S(Codec):
    dtype = register_dtype(DType("iq3_s", 21, 256, 110, np.dtype("u1")))
    writable = False

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        high = blocks[:, 66:74, None] >> np.arange(8, dtype=np.uint8) & 1
        row = blocks[:, 2:66] | high.reshape(-1, 64).astype(np.uint16) << 8
        raw = blocks[:, 106:]
        code = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1, 8).astype(_F)
        d = (f32_column(blocks[:, :2]) * (1 + 2 * code))[:, :, None, None]
        rows = grid_rows("iq3_s")[row].reshape(-1, 8, 4, 8)
        x: np.ndarray = d * rows * signs(blocks[:, 74:106]).reshape(-1, 8, 4, 8)
        return x.reshape(-1, 256)
