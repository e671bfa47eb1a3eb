"""Launches copy.cu."""

from __future__ import annotations

import struct

from .elementwise import BLOCK, divisors, is_wide, n_blocks
from .launch import Call, DeviceInfo, Kernel, Launch, Operand, pack

OPS = ("cont", "concat", "repeat")
_WORDS = {1: "gf_u8", 2: "gf_u16", 4: "u32", 8: "u64", 16: "Pack<u64, 2>"}


def copy_launch(dst: Operand, src: Operand, device: DeviceInfo) -> Launch:
    """dst = src, read modulo its lengths. Dense tensors of one size are copied in wide words."""
    n, word = dst.size, dst.dtype.nbytes
    if dst.is_dense and src.is_dense and dst.ne == src.ne:
        nbytes = n * word
        word = next(w for w in (16, 8, 4, 2, 1)
                    if not any(k % w for k in (nbytes, dst.address, src.address)))  # fmt: skip
        n = nbytes // word
        line = (n, 1, 1, 1), (word, nbytes, nbytes, nbytes)
        dst, src = (o.shift(0, ne=line[0], nb=line[1]) for o in (dst, src))
    args = pack(dst, src, struct.pack("@q", n) + divisors(dst.ne))
    kernel = Kernel("copy.cu", f"copy_strided<{'true' if is_wide(n) else 'false'}, {_WORDS[word]}>")
    return Launch(kernel, (n_blocks(n, device), 1, 1), (BLOCK, 1, 1), args)


def launches(call: Call) -> list[Launch]:
    dst, a = call.dst, call.src(0)
    if call.node.op != "concat":
        return [copy_launch(dst, a, call.device)]
    d = -1 - call.node.params["axis"]  # the joined dimension, innermost first
    parts = [(dst, a), (dst.shift(a.ne[d] * dst.nb[d]), call.src(1))]
    return [
        copy_launch(to.shift(0, ne=x.ne), x, call.device) for to, x in parts if x.size > 0
    ]  # fmt: skip
