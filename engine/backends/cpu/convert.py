"""Element type conversion by the native quantizers, whole tensors at a time, on all threads."""

from __future__ import annotations

import ctypes

import numpy as np

from gguflow.engine.graph import DType
from gguflow.engine.quants import codec

from .native import CpuLibrary

CHUNK_BYTES = 4 << 20  # of float32 values a task handles
# The same for types with a search. A conversion that is given up ends after the tasks in work, and
# the slowest search takes a quarter of a second for as many values as above.
SEARCHED_BYTES = 1 << 19
# What gf_quantize_rows and gf_dequantize_rows return besides 0.
STATUS = {
    1: "there is no native conversion for this type",
    2: "the rows split a block",
    3: "a value is NaN, infinite or too large for the type's scale",
}


class NativeConverter:
    """Rows to and from any type with native code."""

    def __init__(self, lib: CpuLibrary, n_threads: int) -> None:
        self.lib = lib
        self.n_threads = n_threads

    def _rows(
        self, symbol: str, dtype: DType, src: np.ndarray, dst: np.ndarray, n: int, chunk: int
    ) -> None:
        fn = getattr(self.lib.cdll, symbol)
        fn.restype = ctypes.c_int32
        rows = src.shape[0]
        step = max(1, chunk // (4 * n))

        def part(begin: int) -> int:
            a, b = src[begin : begin + step], dst[begin : begin + step]
            pointers = ctypes.c_void_p(a.ctypes.data), ctypes.c_void_p(b.ctypes.data)
            return int(fn(ctypes.c_int32(dtype.ggml_id), *pointers, ctypes.c_int64(len(a)),
                          ctypes.c_int64(n)))  # fmt: skip

        from gguflow.engine.pool import Pool

        with Pool(self.n_threads) as threads:
            failed = [s for s in threads.map(part, range(0, rows, step)) if s]
        if failed:
            raise ValueError(f"{dtype.name}: {STATUS.get(failed[0], failed[0])} (rows of {n})")

    def encode(self, dtype: DType, x: np.ndarray) -> np.ndarray:
        """float32 [rows, n] -> uint8 [rows, row bytes]. ValueError for values that do not fit."""
        x = np.ascontiguousarray(x, np.float32)
        out = np.empty((x.shape[0], dtype.row_bytes(x.shape[1])), np.uint8)
        chunk = SEARCHED_BYTES if dtype.is_quantized and codec(dtype).weighted else CHUNK_BYTES
        self._rows("gf_quantize_rows", dtype, x, out, x.shape[1], chunk)
        return out

    def decode(self, dtype: DType, raw: np.ndarray, n: int) -> np.ndarray:
        """uint8 bytes of rows of n elements -> float32 [rows, n]."""
        raw = np.ascontiguousarray(raw).reshape(-1, dtype.row_bytes(n))
        out = np.empty((raw.shape[0], n), np.float32)
        self._rows("gf_dequantize_rows", dtype, raw, out, n, CHUNK_BYTES)
        return out
