"""Reproducible data and the native entry points, for the tests of the quantized types."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from gguflow.engine.graph import DType


class Native:
    """gf_quantize_rows and gf_dequantize_rows of one library."""

    def __init__(self, path: Path) -> None:
        self.lib = ctypes.CDLL(str(path))
        for name in ("gf_quantize_rows", "gf_dequantize_rows"):
            fn = getattr(self.lib, name)
            fn.restype = ctypes.c_int32
            fn.argtypes = [ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 2

    def quantize(self, dtype: DType, x: np.ndarray) -> np.ndarray:
        assert x.dtype == np.float32 and x.ndim == 2 and x.flags.c_contiguous
        out = np.empty((len(x), dtype.row_bytes(x.shape[1])), np.uint8)
        status = self.lib.gf_quantize_rows(dtype.ggml_id, x.ctypes.data, out.ctypes.data, *x.shape)
        assert status == 0
        return out

    def dequantize(self, dtype: DType, raw: np.ndarray) -> np.ndarray:
        assert raw.dtype == np.uint8 and raw.ndim == 2 and raw.flags.c_contiguous
        out = np.empty((len(raw), raw.shape[1] // dtype.nbytes * dtype.block), np.float32)
        data = (raw.ctypes.data, out.ctypes.data)
        assert self.lib.gf_dequantize_rows(dtype.ggml_id, *data, *out.shape) == 0
        return out


def uniform(n: int, stream: int) -> np.ndarray:
    """n float64 in [0, 1), the same on every machine and numpy: splitmix64 of a counter."""
    z = (np.arange(n, dtype=np.uint64) + np.uint64(stream << 40)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2.0**53


def normal_data(rows: int, n: int) -> np.ndarray:
    """About normal (a sum of twelve uniforms), deviation 1/16: what weights look like."""
    total = np.sum([uniform(rows * n, s) for s in range(12)], axis=0) - 6
    return (total / 16).astype(np.float32).reshape(rows, n)


def heavy_data(rows: int, n: int) -> np.ndarray:
    """A symmetric ratio of uniforms: no finite variance, so blocks have outliers."""
    ratio = (uniform(rows * n, 20) - 0.5) / (uniform(rows * n, 21) + 2.0**-9)
    return (ratio / 64).astype(np.float32).reshape(rows, n)


DATA = {
    "normal": normal_data(24, 512),
    "heavy": heavy_data(24, 512),
    "positive": np.abs(heavy_data(8, 512)),
    "small": normal_data(8, 512) * np.float32(1e-6),
    "subnormal": normal_data(8, 512) * np.float32(1e-39),
    "large": heavy_data(8, 512) * np.float32(8000),
    "integers": np.rint(normal_data(8, 512) * np.float32(40)),
    "sparse": np.where(heavy_data(8, 512) > 0.05, heavy_data(8, 512), np.float32(0)),
    "constant": np.repeat(normal_data(8, 16), 32, axis=1),
    "zeros": np.zeros((2, 512), np.float32),
    "signed zeros": np.copysign(np.float32(0), normal_data(4, 512)),
}
