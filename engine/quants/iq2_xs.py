"""iq2_xs: 256 elements in 74 bytes, 2.3125 bits an element.

Sixteen sub-blocks of 16 elements, two rows of the grid iq2_xs.
x = d * (scale + 1/2) / 4 * row * sign, scale in 0..15.

| bytes  | holds                                                                          |
|--------|--------------------------------------------------------------------------------|
| 0..1   | d, float16                                                                     |
| 2..65  | 32 words of 16 bits: the row in nine, seven signs (an eighth makes them even)  |
| 66..73 | the scales of sub-blocks 2 i (low half of a byte) and 2 i + 1                  |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import Codec
from .bits import f32_column
from .grids import even_signs, grid_rows

_F = np.float32


def quarter_scales(d: np.ndarray, raw: np.ndarray) -> np.ndarray:
    """d [m, 1] times the scales of uint8 [m, 8], as float32 [m, 16, 1, 1]."""
    code = np.stack([raw & 15, raw >> 4], axis=-1).reshape(len(raw), 16)
    scales: np.ndarray = d * (_F(0.5) + code.astype(_F)) * _F(0.25)
    return scales[:, :, None, None]


class IQ2_XS(Codec):
    dtype = register_dtype(DType("iq2_xs", 17, 256, 74, np.dtype("u1")))
    writable = False

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        words = blocks[:, 2:66].copy().view(np.dtype("<u2")).reshape(-1, 16, 2)
        scales = quarter_scales(f32_column(blocks[:, :2]), blocks[:, 66:])
        x: np.ndarray = scales * grid_rows("iq2_xs")[words & 511] * even_signs(words >> 9)
        return x.reshape(-1, 256)
