"""Launches bin_bcast.cu: collapses dimensions, then chooses between 3-D and 1-D grids."""

from __future__ import annotations

import struct
from math import prod

from .collapse import collapse
from .elementwise import cpp_bool, divisors, is_wide, map_launch, pack_size, row_pack
from .launch import MAX_GRID_YZ, Call, Kernel, Launch, Operand, ceil_div, cpp_type, pack, register

OPS = ("add", "sub", "mul", "div")
BLOCK = 128
WARP = 32


def _row_pack(dst: Operand, a: Operand, b: Operand) -> tuple[int, bool]:
    """(elements a load, whether b is one value a row)."""
    scalar = b.nb[0] == 0 and b.ne[0] == dst.ne[0] and dst.ne[0] > 1
    if b.ne[0] != dst.ne[0]:
        return 1, False
    v = row_pack([dst, a] if scalar else [dst, a, b])
    return v, scalar and v > 1


def launches(call: Call) -> list[Launch]:
    op = call.node.op or ""
    functor = "div_" if op == "div" else op
    dst, a, b = collapse(call.dst, call.src(0), call.src(1))
    if dst.size == dst.ne[0] == b.ne[0] and all(o.is_dense for o in (dst, a, b)):
        return map_launch("bin_bcast.cu", functor, dst, [a, b], call.device)

    types = ", ".join([functor, cpp_type(a.dtype), cpp_type(b.dtype)])
    v, scalar = _row_pack(dst, a, b)
    whole = pack_size([dst, a])
    if v == 1 and whole > 1 and dst.is_dense and a.is_dense:
        one_row = not any(b.nb[1:]) and b.ne[0] * b.nb[0] < 1 << 32
        by = divisors((b.ne[0], 1, 1) if one_row else dst.ne)
        args = pack(dst, a, b, struct.pack("@2q", dst.size, 0) + by)
        name = "bin_bcast_cycle" if one_row else "bin_bcast_flat"
        entry = f"{name}<{cpp_bool(is_wide(dst.size))}, {types}, {whole}>"
        return [_line(entry, ceil_div(dst.size, whole), args)]
    row_packs = dst.ne[0] // v
    n = row_packs * dst.rows
    by = divisors((row_packs, *dst.ne[1:]))
    args = pack(dst, a, b, struct.pack("@2q", n, row_packs) + by)
    variant = f"{types}, {v}, {cpp_bool(scalar)}"

    half = max(row_packs // 2, 1)
    x = min(half, BLOCK)
    y = min(dst.ne[1], BLOCK // x)
    z = min(prod(dst.ne[2:]), BLOCK // x // y, 64)
    grid = (ceil_div(half, x), ceil_div(dst.ne[1], y), ceil_div(prod(dst.ne[2:]), z))
    if row_packs >= WARP and grid[1] <= MAX_GRID_YZ and grid[2] <= MAX_GRID_YZ:
        kernel = Kernel("bin_bcast.cu", f"bin_bcast<{variant}>")
        return [Launch(kernel, grid, (x, y, z), args, dependent=True)]
    return [_line(f"bin_bcast_unravel<{cpp_bool(is_wide(n))}, {variant}>", n, args)]


def _line(entry: str, n_threads: int, args: bytes) -> Launch:
    """One thread a piece of work."""
    grid = (ceil_div(n_threads, BLOCK), 1, 1)
    return Launch(Kernel("bin_bcast.cu", entry), grid, (BLOCK, 1, 1), args, dependent=True)


register(OPS, launches)
