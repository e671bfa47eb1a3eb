"""Launches sample.cu."""

from __future__ import annotations

import struct

from gguflow.engine.graph import Tensor

from .launch import Call, DeviceInfo, Kernel, Launch, ceil_div, pack

OPS = ("sample",)
SCAN = 1024  # logits of a block, kScan of sample.cu
SCAN_BLOCK = 512
BLOCK = 1024
KEY = 8  # bytes


def _offsets(n: int) -> tuple[int, int, int, int]:
    """Bytes from the start of the scratch memory to sorted keys, sums, counts and the end."""
    runs, keys = ceil_div(n, SCAN) * SCAN * KEY, n * KEY
    sums = runs + keys
    counts = ceil_div(sums + 4 * n, 16) * 16
    return runs, sums, counts, counts + 16


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    return _offsets(node.live_srcs()[0].shape[1])[-1]


def launches(call: Call) -> list[Launch]:
    n, at = call.src(0).ne[0], call.scratch
    blocks = ceil_div(n, SCAN)
    keys, sums, counts, _ = _offsets(n)
    where = struct.pack("@4Pq", at, at + keys, at + sums, at + counts, blocks)
    args = pack(call.dst, *call.srcs, where)
    return [
        Launch(Kernel("sample.cu", entry), (blocks, 1, 1), (block, 1, 1), args, dependent=True)
        for entry, block in (("sample_scan", SCAN_BLOCK), ("sample", BLOCK))
    ]
