"""Launches unary.cu."""

from __future__ import annotations

from .elementwise import WAVES, map_launch
from .launch import Call, Launch, register

OPS = ("silu", "gelu", "gelu_erf", "relu", "sigmoid", "tanh", "exp", "neg", "sqr", "sqrt", "abs")
_LIBRARY_NAMES = ("tanh", "exp", "sqrt", "abs")  # C++ has functions of these names
# On 16-bit elements it keeps the arithmetic units as busy as the memory. With fewer blocks a thread
# loops, and loads its next elements while it computes: 3 to 6 % faster at 2^26 elements.
_COSTLY = "gelu_erf"
COSTLY_WAVES = 8


def launches(call: Call) -> list[Launch]:
    op = call.node.op or ""
    functor = f"{op}_" if op in _LIBRARY_NAMES else op
    costly = op == _COSTLY and call.dst.dtype.nbytes == 2
    waves = COSTLY_WAVES if costly else WAVES
    return map_launch("unary.cu", functor, call.dst, [call.src(0)], call.device, waves=waves)


register(OPS, launches)
