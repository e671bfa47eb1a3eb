"""iq4_nl: 32 elements in 18 bytes, 4.5 bits an element. x = d * IQ4_VALUES[q].

| bytes | holds                                                                 |
|-------|-----------------------------------------------------------------------|
| 0..1  | d, float16                                                            |
| 2..17 | byte j: q of element j in the low half, of element j + 16 in the high |
"""

from __future__ import annotations

import numpy as np

from ..graph import DType, register_dtype
from .base import F16_MAX, Codec
from .bits import f16_column, f32_column, inverse
from .codebook import (
    IQ4_VALUES,
    iq4_weights,
    nearest_iq4,
    pack_codes,
    search_iq4,
    values_of,
)


class IQ4_NL(Codec):
    dtype = register_dtype(DType("iq4_nl", 20, 32, 18, np.dtype("u1")))
    limit = F16_MAX
    weighted = True

    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        x: np.ndarray = f32_column(blocks[:, :2]) * values_of(blocks[:, 2:], IQ4_VALUES)
        return x

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        w = x * x if importance is None else iq4_weights(x, importance)
        d = search_iq4(np.ascontiguousarray(x.T), np.ascontiguousarray(w.T))[:, None]
        return np.concatenate([f16_column(d), pack_codes(nearest_iq4(inverse(d) * x))], axis=-1)
