"""Launches norm.cu."""

from __future__ import annotations

import struct

from gguflow.engine.graph import Role

from .launch import Call, Kernel, Launch, Operand, ceil_div, pack, register

OPS = ("rms_norm", "rms_norm_mul", "rms_norm_add", "layer_norm")
_MOST_THREADS = 1024
_MOST_KEPT = 2  # packs of four a thread keeps; more would leave a block of 1024 no registers


def block_for(n: int) -> int:
    """Threads for a row of n pieces of work: whole warps, at most 1024."""
    return min(_MOST_THREADS, 32 * ceil_div(max(n, 1), 32))


def by_fours(*operands: Operand | None) -> bool:
    """Whether rows can be read four floats at a time."""
    return all(
        o is None
        or (o.ne[0] % 4 == 0 and o.address % 16 == 0 and all(s % 16 == 0 for s in o.nb[1:]))
        for o in operands
    )


def launches(call: Call) -> list[Launch]:
    op, dst, x, w = call.node.op or "", call.dst, call.src(0), call.optional(1)
    third = call.optional(2)
    b, r = (third, None) if op == "layer_norm" else (None, third)
    v = 4 if by_fours(dst, x, w, third) else 1
    packs = ceil_div(x.ne[0], v)
    kept = min(_MOST_KEPT, ceil_div(packs, _MOST_THREADS)) if v == 4 else 1
    weights = call.node.srcs[1:3] if op == "layer_norm" else call.node.srcs[1:2]
    constant = all(s is None or s.owner.role is Role.WEIGHT for s in weights)
    args = pack(dst, x, w, b, r, struct.pack("@if", constant, call.node.params["eps"]))
    entry = "layer_norm" if op == "layer_norm" else "rms_norm"
    kernel = Kernel("norm.cu", f"{entry}<{v}, {max(kept, 1)}>")
    return [Launch(kernel, (x.rows, 1, 1), (block_for(packs), 1, 1), args, dependent=True)]


register(OPS, launches)
