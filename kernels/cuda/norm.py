"""Launches norm.cu."""

from __future__ import annotations

from gguflow.engine.graph import op_spec

from .launch import Call, Kernel, Launch, Operand, ceil_div, pack, register

OPS = ("rms_norm", "rms_norm_mul", "layer_norm")


def block_for(n: int) -> int:
    """Threads for a row of n pieces of work: whole warps, at most 1024."""
    return min(1024, 32 * ceil_div(max(n, 1), 32))


def by_fours(*operands: Operand | None) -> bool:
    """Whether rows can be read four floats at a time."""
    return all(
        o is None
        or (o.ne[0] % 4 == 0 and o.address % 16 == 0 and all(s % 16 == 0 for s in o.nb[1:]))
        for o in operands
    )


def launches(call: Call) -> list[Launch]:
    dst, x, w, b = call.dst, call.src(0), call.optional(1), call.optional(2)
    op = call.node.op or ""
    v = 4 if by_fours(dst, x, w) and op != "layer_norm" else 1
    entry = "layer_norm" if op == "layer_norm" else f"rms_norm<{v}>"
    args = pack(dst, x, w, b, op_spec(op).pack_params(call.node.params))
    block = (block_for(ceil_div(x.ne[0], v)), 1, 1)
    return [Launch(Kernel("norm.cu", entry), (x.rows, 1, 1), block, args)]


register(OPS, launches)
