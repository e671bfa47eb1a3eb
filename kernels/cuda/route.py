"""Launches route.cu."""

from __future__ import annotations

from gguflow.engine.graph import Tensor, op_spec

from .launch import Call, Kernel, Launch, ceil_div, pack, register

OPS = ("route", "route_weights")
WARPS = 4  # rows of a block
MOST_SHARED = 48 << 10


def _shared(node: Tensor) -> int:
    """Bytes of the scores of a block's rows."""
    n = node.live_srcs()[0].shape[1]
    return 4 * WARPS * (n + 2 * node.params.get("n_group", 0))


def supports(node: Tensor) -> bool:
    return _shared(node) <= MOST_SHARED


def launches(call: Call) -> list[Launch]:
    op = call.node.op or ""
    second = call.optional(1)
    args = pack(call.dst, call.src(0), second, op_spec(op).pack_params(call.node.params))
    grid = (ceil_div(call.dst.ne[1], WARPS), 1, 1)
    block, shared = (32 * WARPS, 1, 1), _shared(call.node)
    return [Launch(Kernel("route.cu", op), grid, block, args, shared, dependent=True)]


register(OPS, launches, supports=supports)
