"""Launches soft_max.cu."""

from __future__ import annotations

from gguflow.engine.graph import op_spec

from .launch import Call, Kernel, Launch, cpp_type, pack, register
from .norm import block_for

OPS = ("soft_max",)


def launches(call: Call) -> list[Launch]:
    x, mask = call.src(0), call.optional(1)
    kernel = Kernel("soft_max.cu", f"soft_max<{cpp_type(mask.dtype) if mask else 'f32'}>")
    args = pack(call.dst, x, mask, op_spec("soft_max").pack_params(call.node.params))
    return [Launch(kernel, (x.rows, 1, 1), (block_for(x.ne[0]), 1, 1), args)]


register(OPS, launches)
