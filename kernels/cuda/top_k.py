"""Launches top_k.cu."""

from __future__ import annotations

import struct

from gguflow.engine.graph import Tensor

from .launch import Call, DeviceInfo, Kernel, Launch, pack, register

OPS = ("top_k",)
BLOCK = 1024
MAX_SELECT = 1024  # kMaxSelect of select.cuh


def supports(node: Tensor) -> bool:
    return node.live_srcs()[0].shape[-1] < 1 << 31  # an index has 32 bits


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    x = node.live_srcs()[0]
    return 0 if node.params["k"] <= MAX_SELECT else 8 * x.size


def launches(call: Call) -> list[Launch]:
    x = call.src(0)
    entry = "top_k_few" if call.node.params["k"] <= MAX_SELECT else "top_k_all"
    args = pack(call.dst, x, struct.pack("@P", call.scratch))
    return [Launch(Kernel("top_k.cu", entry), (x.rows, 1, 1), (BLOCK, 1, 1), args)]


register(OPS, launches, supports=supports, scratch_bytes=scratch_bytes)
