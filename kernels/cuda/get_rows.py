"""Launches get_rows.cu."""

from __future__ import annotations

from .launch import MAX_GRID_YZ, Call, Kernel, Launch, ceil_div, cpp_type, pack, register

OPS = ("get_rows",)
BLOCK = 128


def launches(call: Call) -> list[Launch]:
    table = call.src(0)
    n_pieces = ceil_div(call.dst.ne[0], 8 if table.dtype.is_quantized else 1)
    grid = (ceil_div(n_pieces, BLOCK), min(call.dst.ne[1], MAX_GRID_YZ), 1)
    kernel = Kernel("get_rows.cu", f"get_rows<{cpp_type(table.dtype)}>")
    return [Launch(kernel, grid, (BLOCK, 1, 1), pack(call.dst, table, call.src(1)), dependent=True)]


register(OPS, launches)
