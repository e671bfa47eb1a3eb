"""Launches peaks.cu, which measures a card and belongs to no op."""

from __future__ import annotations

import struct

from .launch import DeviceInfo, Kernel, Launch, pack

BLOCK = 512
CHAINS = 8  # independent ones a thread, in the arithmetic kernels


def read_peak(address: int, nbytes: int, out: int, device: DeviceInfo) -> Launch:
    """Reads `nbytes` from `address` once. out: a float's address."""
    return _launch("read_peak", address, nbytes // 16, out, 0, device)


def f32_peak(turns: int, out: int, device: DeviceInfo) -> tuple[Launch, int]:
    """(launch, its floating-point operations)."""
    launch = _launch("f32_peak", 0, 0, out, turns, device)
    return launch, 2 * CHAINS * turns * BLOCK * launch.grid[0]


def int8_peak(turns: int, out: int, device: DeviceInfo) -> tuple[Launch, int]:
    """(launch, its operations), four multiply-adds an instruction."""
    launch = _launch("int8_peak", 0, 0, out, turns, device)
    return launch, 8 * CHAINS * turns * BLOCK * launch.grid[0]


def _launch(entry: str, x: int, n: int, out: int, turns: int, device: DeviceInfo) -> Launch:
    grid = device.sm_count * device.threads_per_sm // BLOCK
    args = pack(struct.pack("@PqPii", x, n, out, turns, 1))
    return Launch(Kernel("peaks.cu", entry), (grid, 1, 1), (BLOCK, 1, 1), args)
