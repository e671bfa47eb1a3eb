"""f32, f16 and f64: numpy's own types. Conversion rounds to nearest even and keeps NaN and inf."""

from __future__ import annotations

import numpy as np

from ..graph import F16, F32, F64
from .base import Codec


class _Plain(Codec):
    def unpack(self, blocks: np.ndarray) -> np.ndarray:
        return blocks.view(self.dtype.storage).astype(np.float32)

    def pack(self, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        return x.astype(self.dtype.storage).view(np.uint8)


class F32Codec(_Plain):
    dtype = F32


class F16Codec(_Plain):
    dtype = F16


class F64Codec(_Plain):
    """Values pass through float32, the engine's widest type."""

    dtype = F64
