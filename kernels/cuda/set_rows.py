"""Launches set_rows.cu."""

from __future__ import annotations

from .cpy import EXACT
from .launch import MAX_GRID_YZ, Call, Kernel, Launch, ceil_div, cpp_type, pack, register

OPS = ("set_rows",)
BLOCK = 128


def launches(call: Call) -> list[Launch]:
    state, x = call.dst, call.src(1)
    grid = (ceil_div(x.ne[0] // state.dtype.block, BLOCK), min(max(x.ne[1], 1), MAX_GRID_YZ), 1)
    kernel = Kernel("set_rows.cu", f"set_rows<{cpp_type(state.dtype)}>", EXACT)
    return [Launch(kernel, grid, (BLOCK, 1, 1), pack(state, x, call.src(2)), dependent=True)]


register(OPS, launches)
