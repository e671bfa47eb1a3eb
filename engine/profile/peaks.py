"""What this machine can do at best, measured: the roofs that a profile's ops are held against.

The measurement runs numpy's BLAS in a process of its own, because a BLAS library fixes its number
of threads when it loads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np

READ_BYTES = 256 << 20  # well past the last-level cache
MATMUL_N = 768  # large enough for BLAS to reach its best, small enough to repeat often
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "BLIS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Peaks:
    """Measured peaks of one backend. None where nothing measured it.

    read_gbs: GB/s read from main memory. f32_gflops: GFLOP/s of float32 matrix products.
    int8_gops: giga operations a second of int8 dot products, two a multiply-add.
    """

    read_gbs: float | None = None
    f32_gflops: float | None = None
    int8_gops: float | None = None

    def compute(self, types: Sequence[str]) -> float | None:
        """The compute roof of an op with these types (result first): int8 when it has quantized
        operands and that roof is known, else float32."""
        if self.int8_gops and any(is_quantized(t) for t in types):
            return self.int8_gops
        return self.f32_gflops

    def share(self, gbs: float, gflops: float, types: Sequence[str]) -> float | None:
        """The larger of the shares of the memory roof and of the compute roof; None if neither
        is known. Above 1 when the data came from a cache faster than main memory."""
        shares = []
        if self.read_gbs:
            shares.append(gbs / self.read_gbs)
        if roof := self.compute(types):
            shares.append(gflops / roof)
        return max(shares, default=None)


@cache
def is_quantized(type_name: str) -> bool:
    """Whether ggml's type `type_name` is a block-quantized one, told by its name alone, so that
    dumps with types this build does not know can still be read."""
    return type_name.lower().startswith(("q", "iq", "tq", "mxfp", "nvfp"))


@cache
def measure_peaks(n_threads: int) -> Peaks:
    """Peaks of the CPU with `n_threads` threads, as numpy reaches them; about half a second, once
    a process. int8_gops is None: numpy has no int8 dot product worth the name.

    Returns empty Peaks when the measuring process cannot run: a profile without roofs still holds.
    """
    if n_threads < 1:
        raise ValueError(f"n_threads is {n_threads}, must be at least 1")
    env = os.environ | dict.fromkeys(BLAS_THREADS, str(n_threads))
    command = [sys.executable, "-m", "gguflow.engine.profile.peaks", str(n_threads)]
    try:
        done = subprocess.run(command, env=env, capture_output=True, timeout=20, check=True)
        return Peaks(**json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return Peaks()


def _best_seconds(work: Callable[[], object], budget: float) -> float:
    """Least wall time of `work` over the runs that fit `budget` seconds, after a first one that
    pays for page faults and for starting the BLAS threads."""
    work()
    best = float("inf")
    end = time.perf_counter() + budget
    while True:
        start = time.perf_counter()
        work()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best


def _measure_here(n_threads: int) -> Peaks:
    """Measure in this process, whose BLAS was started with `n_threads` threads."""
    # A dot product of a vector with itself reads each element once, with full-width loads. BLAS
    # runs it on one thread whatever its size, so each thread gets a vector of its own.
    vectors = np.ones((n_threads, READ_BYTES // 4 // n_threads), np.float32)
    with ThreadPoolExecutor(n_threads) as pool:
        read = _best_seconds(lambda: list(pool.map(np.dot, vectors, vectors)), 0.08)
    a, b, c = np.ones((3, MATMUL_N, MATMUL_N), np.float32)
    matmul = _best_seconds(lambda: np.matmul(a, b, out=c), 0.08)
    return Peaks(vectors.nbytes / read / 1e9, 2 * MATMUL_N**3 / matmul / 1e9)


if __name__ == "__main__":
    print(json.dumps(asdict(_measure_here(int(sys.argv[1])))))
