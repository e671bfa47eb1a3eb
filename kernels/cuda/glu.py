"""Launches glu.cu."""

from __future__ import annotations

from .elementwise import map_launch
from .launch import Call, Launch

OPS = ("swiglu", "geglu", "reglu")
_ACTIVATION = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}


def launches(call: Call) -> list[Launch]:
    gate, up = call.src(0), call.optional(1)
    if up is None:  # one operand holds both, side by side in each row
        half = (call.dst.ne[0], *gate.ne[1:])
        up = gate.shift(call.dst.ne[0] * gate.nb[0], ne=half)
        gate = gate.shift(0, ne=half)
    functor = f"gated<{_ACTIVATION[call.node.op or '']}>"
    return map_launch("glu.cu", functor, call.dst, [gate, up], call.device)
