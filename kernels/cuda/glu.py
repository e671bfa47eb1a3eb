"""Launches glu.cu."""

from __future__ import annotations

from gguflow.engine.graph import op_spec

from .elementwise import map_launch
from .launch import Call, Launch, register

OPS = ("swiglu", "geglu", "reglu", "swiglu_clamped", "sigmoid_mul")
FUNCTOR = {
    "swiglu": "gated<silu>",
    "geglu": "gated<gelu>",
    "reglu": "gated<relu>",
    "swiglu_clamped": "gated_clamped",
    "sigmoid_mul": "gated<sigmoid>",
}


def launches(call: Call) -> list[Launch]:
    gate, up, op = call.src(0), call.optional(1), call.node.op or ""
    if up is None:  # one operand holds both, side by side in each row
        half = (call.dst.ne[0], *gate.ne[1:])
        up = gate.shift(call.dst.ne[0] * gate.nb[0], ne=half)
        gate = gate.shift(0, ne=half)
    params = op_spec(op).pack_params(call.node.params)
    return map_launch("glu.cu", FUNCTOR[op], call.dst, [gate, up], call.device, params)


register(OPS, launches)
