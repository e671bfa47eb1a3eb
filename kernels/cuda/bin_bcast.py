"""Launches bin_bcast.cu: collapses dimensions, then chooses between 3-D and 1-D grids."""

from __future__ import annotations

import struct
from dataclasses import replace
from math import prod

from .elementwise import is_wide, map_launch, pack_size
from .launch import MAX_GRID_YZ, Call, Kernel, Launch, Operand, ceil_div, cpp_type, fast_div, pack

OPS = ("add", "sub", "mul", "div")
BLOCK = 128
WARP = 32


def collapse(dst: Operand, a: Operand, b: Operand) -> tuple[Operand, Operand, Operand]:
    """The same operation over fewer dimensions.

    A dimension merges with the next inner one when in every operand it only continues it. Of b,
    dimensions of length one that are repeated are given the full length and a stride of zero; other
    repeated dimensions stay as they are.
    """
    repeated = [m == 1 for m in b.ne]
    b_ne = tuple(n if r else m for n, m, r in zip(dst.ne, b.ne, repeated, strict=True))
    b = replace(b, ne=b_ne, nb=tuple(0 if r else s for s, r in zip(b.nb, repeated, strict=True)))
    dims = list(range(4))
    operands = [[[o.ne[i], o.nb[i]] for i in dims if dst.ne[i] > 1 or i == 0] for o in (dst, a, b)]
    i = 1
    while i < len(operands[0]):
        whole = operands[2][i][0] == operands[0][i][0]  # b covers both dimensions in full
        whole &= operands[2][i - 1][0] == operands[0][i - 1][0]
        if whole and all(o[i][1] == o[i - 1][0] * o[i - 1][1] for o in operands):
            for o in operands:
                o[i - 1][0] *= o[i][0]
                del o[i]
        else:
            i += 1

    def rebuilt(o: Operand, parts: list[list[int]]) -> Operand:
        ne = [n for n, _ in parts] + [1] * (4 - len(parts))
        return replace(o, ne=tuple(ne), nb=tuple(s for _, s in parts) + (0,) * (4 - len(parts)))

    return rebuilt(dst, operands[0]), rebuilt(a, operands[1]), rebuilt(b, operands[2])


def _row_pack(dst: Operand, a: Operand, b: Operand) -> tuple[int, bool]:
    """(elements a load, whether b is one value a row)."""
    scalar = b.nb[0] == 0 and b.ne[0] == dst.ne[0] and dst.ne[0] > 1
    loaded = [dst, a] if scalar else [dst, a, b]
    v = pack_size([dst, a, b] if not scalar else [dst, a])
    fits = (
        v > 1
        and dst.ne[0] % v == 0
        and (scalar or b.ne[0] == dst.ne[0])
        and all(o.nb[0] == o.dtype.nbytes for o in loaded)
        and all(s % (v * o.dtype.nbytes) == 0 for o in loaded for s in o.nb[1:])
    )
    return (v, scalar) if fits else (1, False)


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
        by = b"".join(fast_div(k) for k in dst.ne[:3])
        one_row = not any(b.nb[i] for i in range(1, 4) if dst.ne[i] > 1)
        args = pack(dst, a, b, struct.pack("@2q", dst.size, 0) + by + struct.pack("@I", one_row))
        entry = f"bin_bcast_flat<{_cpp_bool(is_wide(dst.size))}, {types}, {whole}>"
        return [_line(entry, ceil_div(dst.size, whole), args)]
    row_packs = dst.ne[0] // v
    n = row_packs * dst.rows
    by = b"".join(fast_div(k) for k in (row_packs, dst.ne[1], dst.ne[2]))
    args = pack(dst, a, b, struct.pack("@2q", n, row_packs) + by)
    variant = f"{types}, {v}, {_cpp_bool(scalar)}"

    half = max(row_packs // 2, 1)
    x = min(half, BLOCK)
    y = min(dst.ne[1], BLOCK // x)
    z = min(prod(dst.ne[2:]), BLOCK // x // y, 64)
    grid = (ceil_div(half, x), ceil_div(dst.ne[1], y), ceil_div(prod(dst.ne[2:]), z))
    if row_packs >= WARP and grid[1] <= MAX_GRID_YZ and grid[2] <= MAX_GRID_YZ:
        return [Launch(Kernel("bin_bcast.cu", f"bin_bcast<{variant}>"), grid, (x, y, z), args)]
    return [_line(f"bin_bcast_unravel<{_cpp_bool(is_wide(n))}, {variant}>", n, args)]


def _cpp_bool(value: bool) -> str:
    return "true" if value else "false"


def _line(entry: str, n_threads: int, args: bytes) -> Launch:
    """One thread a piece of work."""
    grid = (ceil_div(n_threads, BLOCK), 1, 1)
    return Launch(Kernel("bin_bcast.cu", entry), grid, (BLOCK, 1, 1), args)
