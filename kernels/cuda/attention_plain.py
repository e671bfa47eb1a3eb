"""Launches attention_plain.cu: attention of wide heads."""

from __future__ import annotations

from gguflow.engine.graph import Tensor, op_spec

from .launch import MAX_GRID_YZ, Call, Kernel, Launch, cpp_type, pack

WARPS = 8
PER_LANE = (2, 4, 8, 16, 18)  # elements of a head that a lane may hold
WIDE = 512  # heads up to which the other kernels go


def applies(node: Tensor) -> bool:
    """Whether the other kernels leave a node to this one."""
    q = node.live_srcs()[0]
    return max(q.shape[2], node.shape[2]) > WIDE


def supports(node: Tensor) -> bool:
    q = node.live_srcs()[0]
    return max(q.shape[2], node.shape[2]) <= 32 * PER_LANE[-1] and q.shape[0] <= MAX_GRID_YZ


def launches(call: Call) -> list[Launch]:
    q, k, v = (call.src(i) for i in range(3))
    per_lane = next(n for n in PER_LANE if 32 * n >= max(q.ne[0], v.ne[0]))
    types = f"{cpp_type(k.dtype)}, {cpp_type(v.dtype)}"
    where = (call.src(i) for i in range(3, 6))
    params = op_spec("attention").pack_params(call.node.params)
    args = pack(call.dst, q, k, v, *where, call.optional(6), params)
    kernel = Kernel("attention_plain.cu", f"attention_plain<{types}, {per_lane}>")
    return [Launch(kernel, (q.ne[1], q.ne[2], 1), (32 * WARPS, 1, 1), args)]
