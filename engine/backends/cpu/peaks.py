"""What this machine can do at best with the loaded library's instructions, measured."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import numpy as np

from .native import CpuLibrary

READ_BYTES = 256 << 20  # in all: well past the last-level cache
TURNS = 400_000  # of the arithmetic loops: a few milliseconds
ROUNDS = 8


Measured = tuple[float, float, float, None, float | None]


def measure(lib: CpuLibrary, n_threads: int) -> Measured:
    """GB/s read from memory, GFLOP/s of float32, GOP/s of int8, nothing for float16, which no
    instructions of ours multiply faster, GFLOP/s of bf16 where some do; all threads together, in
    the order of `engine.profile.Peaks`.

    The best of several rounds: peaks are roofs, and anything else on the machine lowers a reading.
    About a quarter of a second.
    """
    arithmetic = {}
    for name in ("gf_peak_f32", "gf_peak_int8", "gf_peak_bf16"):
        if not lib.address(name):
            continue
        fn = getattr(lib.cdll, name)
        fn.restype, fn.argtypes = ctypes.c_int64, [ctypes.c_int64]
        arithmetic[name] = fn
    read = lib.cdll.gf_peak_read
    read.restype, read.argtypes = ctypes.c_float, [ctypes.c_void_p, ctypes.c_int64]
    data = np.ones((n_threads, READ_BYTES // 4 // n_threads), np.float32)

    def read_part(i: int) -> int:
        read(data[i].ctypes.data, data.shape[1])
        return data[i].nbytes

    from gguflow.engine.pool import Pool

    with Pool(n_threads) as pool:

        def best(work: Callable[[int], int]) -> float:
            rates = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                done = sum(pool.map(work, range(n_threads)))
                rates.append(done / (time.perf_counter() - began) / 1e9)
            return max(rates)

        def rate(name: str) -> float:
            return best(lambda i: int(arithmetic[name](TURNS)))

        bf16 = rate("gf_peak_bf16") if "gf_peak_bf16" in arithmetic else None
        return best(read_part), rate("gf_peak_f32"), rate("gf_peak_int8"), None, bf16
