"""Launches attention.cu."""

from __future__ import annotations

from gguflow.engine.graph import Tensor, op_spec

from .launch import MAX_GRID_YZ, Call, Kernel, Launch, cpp_type, pack

OPS = ("attention",)
WARPS = 8
PER_LANE = (2, 4, 8, 16)  # elements of a head a lane may hold


def supports(node: Tensor) -> bool:
    q = node.live_srcs()[0]
    widest = max(q.shape[2], node.shape[2])
    return widest <= 32 * PER_LANE[-1] and q.shape[0] <= MAX_GRID_YZ


def launches(call: Call) -> list[Launch]:
    q, k, v, pos = (call.src(i) for i in range(4))
    per_lane = next(n for n in PER_LANE if 32 * n >= max(q.ne[0], v.ne[0]))
    kernel = Kernel(
        "attention.cu", f"attention<{cpp_type(k.dtype)}, {cpp_type(v.dtype)}, {per_lane}>"
    )
    args = pack(call.dst, q, k, v, pos, op_spec("attention").pack_params(call.node.params))
    return [Launch(kernel, (q.ne[1], q.ne[2], 1), (32 * WARPS, 1, 1), args)]
