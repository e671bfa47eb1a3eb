"""Launches copy.cu: as one run, by rows in wide words, through transposed tiles, or by elements."""

from __future__ import annotations

import struct
from dataclasses import replace
from math import prod

from gguflow.engine.graph import Tensor, is_in_place

from .collapse import collapse
from .elementwise import BLOCK, cpp_bool, divisors, is_wide, n_blocks
from .launch import Call, DeviceInfo, Kernel, Launch, Operand, ceil_div, pack, register

OPS = ("cont", "concat", "repeat")
_WORDS = {1: "gf_u8", 2: "gf_u16", 4: "u32", 8: "u64", 16: "Pack<u64, 2>"}
TILE = 64  # SIDE of copy_transposed
SHORT = 16  # dimensions of which a tile would be mostly empty


def copy_launch(dst: Operand, src: Operand, device: DeviceInfo) -> Launch:
    """dst = src, read modulo its lengths."""
    dst, src = collapse(dst, src)
    word = dst.dtype.nbytes
    if dst.ne[0] == src.ne[0] and dst.nb[0] == src.nb[0] == word:
        fits = [o.address for o in (dst, src)] + [s for o in (dst, src) for s in o.nb[1:]]
        row = dst.ne[0] * word
        word = next(w for w in sorted(_WORDS, reverse=True) if not any(k % w for k in (*fits, row)))
        dst, src = (
            replace(o, ne=(row // word, *o.ne[1:]), nb=(word, *o.nb[1:])) for o in (dst, src)
        )
        if dst.size == dst.ne[0]:
            return _launch(f"copy_dense<{_WORDS[word]}>", dst, src, device)
    elif (d := _neighbours(dst, src)) is not None:
        return _transposed(*(_brought_to_1(o, d) for o in (dst, src)))
    how = f"{cpp_bool(is_wide(dst.size))}, {cpp_bool(dst.ne != src.ne)}"
    return _launch(f"copy_strided<{how}, {_WORDS[word]}>", dst, src, device)


def _launch(entry: str, dst: Operand, src: Operand, device: DeviceInfo) -> Launch:
    args = pack(dst, src, struct.pack("@q", dst.size) + divisors(dst.ne))
    grid = n_blocks(dst.size, device)
    return Launch(Kernel("copy.cu", entry), (grid, 1, 1), (BLOCK, 1, 1), args, dependent=True)


def _neighbours(dst: Operand, src: Operand) -> int | None:
    """The dimension along which src's elements are neighbours, when dst's innermost is another and
    both are long enough for tiles."""
    word = dst.dtype.nbytes
    if dst.nb[0] != word or dst.ne != src.ne or dst.ne[0] < SHORT:
        return None
    return next((d for d in (1, 2, 3) if src.nb[d] == word and src.ne[d] >= SHORT), None)


def _brought_to_1(o: Operand, d: int) -> Operand:
    order = [0, d, *(i for i in (1, 2, 3) if i != d)]
    return replace(o, ne=tuple(o.ne[i] for i in order), nb=tuple(o.nb[i] for i in order))


def _transposed(dst: Operand, src: Operand) -> Launch:
    tiles = (ceil_div(dst.ne[0], TILE), ceil_div(dst.ne[1], TILE), *dst.ne[2:])
    args = pack(dst, src, struct.pack("@q", prod(tiles)) + divisors(tiles))
    kernel = Kernel("copy.cu", f"copy_transposed<{_WORDS[dst.dtype.nbytes]}>")
    return Launch(kernel, (prod(tiles), 1, 1), (32, 8, 1), args, dependent=True)


def launches(call: Call) -> list[Launch]:
    dst, a = call.dst, call.src(0)
    if call.node.op != "concat":
        return [copy_launch(dst, a, call.device)]
    d = -1 - call.node.params["axis"]  # the joined dimension, innermost first
    parts = [(dst, a), (dst.shift(a.ne[d] * dst.nb[d]), call.src(1))]
    return [
        copy_launch(to.shift(0, ne=x.ne), x, call.device)
        for i, (to, x) in enumerate(parts)
        if x.size > 0 and not is_in_place(call.node, i)
    ]


def _strided(node: Tensor, device: DeviceInfo) -> bool:
    return node.op == "concat"


register(OPS, launches, any_type=True, strided=_strided)
