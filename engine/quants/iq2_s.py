"""iq2_s: 256 elements in 82 bytes, 2.5625 bits an element.

Sixteen sub-blocks of 16 elements, two rows of the grid iq2_s.
x = d * (scale + 1/2) / 4 * row * sign, scale in 0..15.

| bytes  | holds                                                              |
|--------|--------------------------------------------------------------------|
| 0..1   | d, float16                                                         |
| 2..33  | low eight bits of row i                                            |
| 34..65 | signs of row i                                                     |
| 66..73 | high two bits of rows 4 i to 4 i + 3, lowest first                 |
| 74..81 | scales as in iq2_xs                                                |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import Codec
from .bits import f32_column
from .grids import grid_rows, signs
from .iq2_xs import quarter_scales


class IQ2_S(Codec):
    dtype = register_dtype(DType("iq2_s", 22, 256, 82, np.dtype("u1")))
    writable = False

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        high = blocks[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
        row = blocks[:, 2:34] | high.reshape(-1, 32).astype(np.uint16) << 8
        scales = quarter_scales(f32_column(blocks[:, :2]), blocks[:, 74:])
        rows = (grid_rows("iq2_s")[row], signs(blocks[:, 34:66]))
        x: np.ndarray = scales * rows[0].reshape(-1, 16, 2, 8) * rows[1].reshape(-1, 16, 2, 8)
        return x.reshape(-1, 256)
