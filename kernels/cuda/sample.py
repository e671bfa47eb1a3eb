"""Launches sample.cu."""

from __future__ import annotations

import struct

from gguflow.engine.graph import Tensor

from .launch import Call, DeviceInfo, Kernel, Launch, pack

OPS = ("sample",)
BLOCK = 1024


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    return 12 * node.live_srcs()[0].shape[1]


def launches(call: Call) -> list[Launch]:
    args = pack(call.dst, *call.srcs, struct.pack("@P", call.scratch))
    return [Launch(Kernel("sample.cu", "sample"), (1, 1, 1), (BLOCK, 1, 1), args)]
