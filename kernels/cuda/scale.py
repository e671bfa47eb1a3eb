"""Launches scale.cu."""

from __future__ import annotations

from gguflow.engine.graph import op_spec

from .elementwise import map_launch
from .launch import Call, Launch, register

OPS = ("scale", "clamp", "fatrelu")


def launches(call: Call) -> list[Launch]:
    op = call.node.op or ""
    params = op_spec(op).pack_params(call.node.params)
    return map_launch("scale.cu", op, call.dst, [call.src(0)], call.device, params)


register(OPS, launches)
