"""Launches map_ids.cu."""

from __future__ import annotations

from .launch import Call, Kernel, Launch, ceil_div, pack, register

OPS = ("map_ids",)
BLOCK = 256


def launches(call: Call) -> list[Launch]:
    grid = (ceil_div(call.dst.size, BLOCK), 1, 1)
    args = pack(call.dst, call.src(0), call.src(1))
    return [Launch(Kernel("map_ids.cu", "map_ids"), grid, (BLOCK, 1, 1), args)]


register(OPS, launches)
