"""Launches moe_sum.cu."""

from __future__ import annotations

from .launch import MAX_GRID_YZ, Call, Kernel, Launch, Operand, ceil_div, pack, register
from .norm import by_fours

OPS = ("moe_sum",)
BLOCK = 256


def sum_launch(dst: Operand, x: Operand, shares: Operand, r: Operand | None = None) -> Launch:
    """dst [m, n] = the sum of x [m, u, n] by shares [m, u], plus r."""
    v = 4 if by_fours(dst, x, r) else 1
    grid = (ceil_div(dst.ne[0], BLOCK * v), min(dst.ne[1], MAX_GRID_YZ), 1)
    kernel = Kernel("moe_sum.cu", f"moe_sum<{v}>")
    return Launch(kernel, grid, (BLOCK, 1, 1), pack(dst, x, shares, r), dependent=True)


def launches(call: Call) -> list[Launch]:
    return [sum_launch(call.dst, call.src(0), call.src(1))]


register(OPS, launches)
