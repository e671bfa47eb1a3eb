"""Launches moe_sum.cu."""

from __future__ import annotations

from .launch import MAX_GRID_YZ, Call, Kernel, Launch, ceil_div, pack, register

OPS = ("moe_sum",)
BLOCK = 256


def launches(call: Call) -> list[Launch]:
    grid = (ceil_div(call.dst.ne[0], BLOCK), min(call.dst.ne[1], MAX_GRID_YZ), 1)
    args = pack(call.dst, call.src(0), call.src(1))
    return [Launch(Kernel("moe_sum.cu", "moe_sum"), grid, (BLOCK, 1, 1), args, dependent=True)]


register(OPS, launches)
