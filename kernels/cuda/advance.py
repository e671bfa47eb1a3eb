"""Launches advance.cu, which belongs to no op."""

from __future__ import annotations

import struct

from .launch import Kernel, Launch, pack

BLOCK = 256


def advance(
    token: int, tokens: int, pos: int, rng: int, history: int, n_history: int, ring: int, size: int
) -> Launch:
    """The end of a decode step on the device: all but the last and `n_history` are addresses.

    ring: of `size` uint64, a power of two, in pinned host memory. The token that belongs at
    position p is stored in entry p % size as p << 32 | token.
    """
    args = struct.pack("@6P2q", token, tokens, pos, rng, history, ring, n_history, size)
    kernel = Kernel("advance.cu", "advance")
    return Launch(kernel, (1, 1, 1), (BLOCK, 1, 1), pack(args), dependent=True)
