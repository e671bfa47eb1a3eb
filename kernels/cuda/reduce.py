"""Launches reduce.cu."""

from __future__ import annotations

import struct

from .launch import Call, Kernel, Launch, Operand, ceil_div, pack

OPS = ("sum", "mean", "max", "argmax")


def _without(o: Operand, d: int) -> Operand:
    """The operand with dimension `d` moved outermost, so that three dimensions remain."""
    order = [i for i in range(4) if i != d] + [d]
    return o.shift(0, ne=tuple(o.ne[i] for i in order), nb=tuple(o.nb[i] for i in order))


def launches(call: Call) -> list[Launch]:
    x, d = call.src(0), -1 - call.node.params["axis"]
    results = call.dst.size
    numbers = struct.pack("@3q", x.ne[d], x.nb[d], results)
    args = pack(_without(call.dst, d), _without(x, d), numbers)
    functor = f"{call.node.op}_"
    if d == 0:
        block = min(256, 32 * ceil_div(x.ne[0], 32))
        kernel = Kernel("reduce.cu", f"reduce_rows<{functor}>")
        return [Launch(kernel, (results, 1, 1), (block, 1, 1), args)]
    kernel = Kernel("reduce.cu", f"reduce_columns<{functor}>")
    return [Launch(kernel, (ceil_div(results, 32), 1, 1), (32, 8, 1), args)]
