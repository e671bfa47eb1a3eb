"""iq3_xxs: 256 elements in 98 bytes, 3.0625 bits an element.

Eight sub-blocks of 32 elements, eight rows of four of the grid iq3_xxs.
x = d * (scale + 1/2) / 2 * row * sign, scale in 0..15.

| bytes  | holds                                                                      |
|--------|----------------------------------------------------------------------------|
| 0..1   | d, float16                                                                 |
| 2..65  | row i                                                                      |
| 66..97 | for each sub-block a word of signs and scale as in iq2_xxs                 |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import Codec
from .bits import f32_column
from .grids import even_signs, grid_rows
from .iq2_xxs import SIGN_SHIFTS

_F = np.float32


class IQ3_XXS(Codec):
    dtype = register_dtype(DType("iq3_xxs", 18, 256, 98, np.dtype("u1")))
    writable = False

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        tail = blocks[:, 66:].copy().view(np.dtype("<u4")).reshape(-1, 8, 1)
        d = f32_column(blocks[:, :2]) * (_F(0.5) + (tail[..., 0] >> 28).astype(_F)) * _F(0.5)
        rows = grid_rows("iq3_xxs")[blocks[:, 2:66]].reshape(-1, 8, 4, 8)
        x: np.ndarray = d[:, :, None, None] * rows * even_signs(tail >> SIGN_SHIFTS & 127)
        return x.reshape(-1, 256)
