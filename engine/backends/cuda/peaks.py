"""What a GPU can do at best, measured: the roofs of its profiles and kernel benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gguflow.kernels.cuda.gemm import WORKSPACE_BYTES, Gemm, Matrix
from gguflow.kernels.cuda.launch import Launch
from gguflow.kernels.cuda.peaks import f32_peak, int8_peak, read_peak

from .timing import elapsed_us

if TYPE_CHECKING:
    from .backend import CudaBackend

READ_BYTES = 1 << 30  # far past the second-level cache
LEAST_READ_BYTES = 256 << 20
SIDES = (8192, 4096, 2048)  # of the matrices multiplied, the largest that there is room for
TURNS = 20_000  # of the arithmetic loops: a millisecond or two
ROUNDS = 8


def measure(backend: CudaBackend) -> tuple[float, float, float, float] | None:
    """(GB/s read from memory, GFLOP/s of float32, GOP/s of int8 dot products, GFLOP/s of float16
    matrix products through cuBLAS), the best of several rounds; about a quarter of a second.

    None where a model leaves too little memory to measure with.
    """
    device, modules = backend.device, backend.modules
    room = device.memory()[0] // 4
    sides = [s for s in SIDES if 3 * 2 * s * s + WORKSPACE_BYTES <= room]
    if room < LEAST_READ_BYTES or not sides:
        return None
    side, block = sides[0], sides[0] * sides[0] * 2
    nbytes = min(READ_BYTES, room) // 16 * 16
    data, out = backend.alloc(nbytes), backend.alloc(16)
    halves = [backend.alloc(block) for _ in range(3)]
    # A part of the rows is drawn and repeated; zeros would run faster than data does.
    rows = np.random.default_rng(0).standard_normal((256, side), np.float32).astype(np.float16)
    for half in halves[:2]:
        half.write(0, np.resize(rows, (side, side)))
    workspace = backend.alloc(WORKSPACE_BYTES)
    w, x, d = (Matrix(h.address, side) for h in halves)
    info = device.info
    work: list[tuple[Launch | Gemm, int]] = [
        (read_peak(data.address, nbytes, out.address, info), nbytes),
        f32_peak(TURNS, out.address, info),
        int8_peak(TURNS, out.address, info),
        (Gemm("f16", "f16", side, side, side, w, x, d, workspace.address), 2 * side**3),
    ]
    modules.prepare(s.kernel for s, _ in work if isinstance(s, Launch))
    rates = []
    for step, amount in work:
        issue = modules.bind(step).issue
        best = min(elapsed_us(device, issue) for _ in range(ROUNDS))
        rates.append(amount / best / 1e3)
    read, f32, int8, f16 = rates
    return read, f32, int8, f16
