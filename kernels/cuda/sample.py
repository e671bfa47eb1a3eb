"""Launches sample.cu."""

from __future__ import annotations

import struct

from gguflow.engine.graph import Tensor

from .launch import Call, DeviceInfo, Kernel, Launch, ceil_div, pack

OPS = ("sample",)
SCAN = 1024  # logits of a block, kScan of sample.cu
SCAN_BLOCK = 512
LIST_BYTES = 64 * 8  # what a block of the scan leaves
BLOCK = 1024


def _list_offset(n: int) -> int:
    """Bytes of the penalized logits and two rows of indices, before the lists."""
    return ceil_div(12 * n, 16) * 16


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    n = node.live_srcs()[0].shape[1]
    return _list_offset(n) + ceil_div(n, SCAN) * LIST_BYTES


def launches(call: Call) -> list[Launch]:
    n, at = call.src(0).ne[0], call.scratch
    blocks = ceil_div(n, SCAN)
    where = struct.pack("@3Pq", at, at + 4 * n, at + _list_offset(n), blocks)
    args = pack(call.dst, *call.srcs, where)
    return [
        Launch(Kernel("sample.cu", entry), (grid, 1, 1), (block, 1, 1), args, dependent=True)
        for entry, grid, block in (("sample_scan", blocks, SCAN_BLOCK), ("sample", 1, BLOCK))
    ]
