"""iq2_xxs: 256 elements in 66 bytes, 2.0625 bits an element.

Eight sub-blocks of 32 elements, four rows of the grid iq2_xxs.
x = d * (scale + 1/2) / 4 * row * sign, scale in 0..15.

| bytes | holds                                                                           |
|-------|---------------------------------------------------------------------------------|
| 0..1  | d, float16                                                                      |
| 2..65 | for each sub-block four bytes, the rows, then a word: four times seven signs    |
|       | (an eighth makes them even) from the lowest bit up, and the scale at bit 28     |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import Codec
from .bits import f32_column
from .grids import even_signs, grid_rows

_F = np.float32
SIGN_SHIFTS = np.array([0, 7, 14, 21], np.uint32)


class IQ2_XXS(Codec):
    dtype = register_dtype(DType("iq2_xxs", 16, 256, 66, np.dtype("u1")))
    writable = False

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        words = blocks[:, 2:].reshape(-1, 8, 8)
        tail = words[:, :, 4:].copy().view(np.dtype("<u4"))  # [m, 8, 1]
        d = f32_column(blocks[:, :2]) * (_F(0.5) + (tail[..., 0] >> 28).astype(_F)) * _F(0.25)
        rows = grid_rows("iq2_xxs")[words[:, :, :4]]
        x: np.ndarray = d[:, :, None, None] * rows * even_signs(tail >> SIGN_SHIFTS & 127)
        return x.reshape(-1, 256)
