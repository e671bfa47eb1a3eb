"""Launches unary.cu."""

from __future__ import annotations

from .elementwise import map_launch
from .launch import Call, Launch

OPS = ("silu", "gelu", "gelu_erf", "relu", "sigmoid", "tanh", "exp", "neg", "sqr", "sqrt", "abs")
_LIBRARY_NAMES = ("tanh", "exp", "sqrt", "abs")  # C++ has functions of these names


def launches(call: Call) -> list[Launch]:
    op = call.node.op or ""
    functor = f"{op}_" if op in _LIBRARY_NAMES else op
    return map_launch("unary.cu", functor, call.dst, [call.src(0)], call.device)
