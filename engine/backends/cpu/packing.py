"""Weights in the interleaved layout of kernels/cpu/packed.h."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from math import prod

import numpy as np

from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.graph import DType, Tensor

from .abi import ABI_VERSION
from .native import CpuLibrary, CpuLibraryError

PACKED_ROWS = 16  # rows of a group
ALONE = 4 << 20  # bytes that one thread packs before others are there to help
AT_ONCE = 8 << 20  # bytes of one call: Ctrl-C waits for those that have begun


class NativePacker:
    """Packs rows on all threads."""

    def __init__(self, lib: CpuLibrary, n_threads: int) -> None:
        self._lib, self.n_threads = lib, n_threads

    def layout(self, dtypes: Iterable[DType]) -> str:
        """Instruction set, kernel interface, and a digest of what packing makes of known rows: a
        whole group and part of one, of each type. No version has to be kept by hand."""
        from hashlib import sha256

        digest = sha256()
        for dtype in sorted(set(dtypes), key=lambda d: d.ggml_id):
            n_rows, n_cols = PACKED_ROWS + 1, 2 * max(dtype.block, 32)
            numbers = np.arange(n_rows * dtype.row_bytes(n_cols), dtype=np.uint64)
            raw = (numbers * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(56)).astype(np.uint8)
            out = np.empty(self._lib.packed_bytes(dtype, n_rows, n_cols), np.uint8)
            self._rows(dtype, raw, out, n_rows, n_cols, 1)
            digest.update(dtype.name.encode() + out.tobytes())
        return f"{self._lib.isa} {ABI_VERSION} {digest.hexdigest()[:32]}"

    def pack(self, weight: Tensor, raw: np.ndarray, out: np.ndarray) -> None:
        """The file's bytes of a matrix, or of a stack of them, to `out` (uint8 [packed bytes])."""
        threads = self.n_threads if raw.nbytes > ALONE else 1
        try:
            self._rows(weight.dtype, raw, out, prod(weight.shape[:-1]), weight.shape[-1], threads)
        except ValueError:
            raise CpuLibraryError(f"{weight.name}: cannot repack {weight.dtype.name}") from None

    def buffer(self, data: np.ndarray) -> HostBuffer:
        """Packed bytes as what kernels read."""
        return HostBuffer(data)

    def _rows(
        self, dtype: DType, raw: np.ndarray, out: np.ndarray, n_rows: int, n_cols: int, n: int
    ) -> None:
        groups = -(-n_rows // PACKED_ROWS)
        group_bytes = PACKED_ROWS * dtype.row_bytes(n_cols)
        step = max(1, min(-(-groups // n), AT_ONCE // max(1, group_bytes)))

        def part(begin: int) -> int:
            return int(
                self._lib.cdll.gf_pack_rows(
                    ctypes.c_int32(dtype.ggml_id), ctypes.c_void_p(raw.ctypes.data),
                    ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(n_rows),
                    ctypes.c_int64(n_cols), ctypes.c_int64(begin),
                    ctypes.c_int64(min(begin + step, groups)),
                )
            )  # fmt: skip

        parts = range(0, groups, step)
        if len(parts) == 1:
            failed = part(0)
        else:
            from gguflow.engine.pool import Pool

            with Pool(n) as threads:
                failed = any(threads.map(part, parts))
        if failed:
            raise ValueError(dtype.name)
