"""Launches mirror.cu, which belongs to no op."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from .launch import Kernel, Launch, ceil_div, pack

BUFFERS = 4  # kBuffers of mirror.cu
MAX_BLOCK = 1024
ALIGN = 16

Span = tuple[int, int, int]  # to, from, bytes


def mirror(spans: Sequence[Span]) -> Iterator[Launch]:
    """Copies between device memory and pinned host memory, all addresses and sizes multiples of 16.

    For sizes of some KiB: above, the copy engine is faster.
    """
    for first in range(0, len(spans), BUFFERS):
        part = spans[first : first + BUFFERS]
        to, source, nbytes = (
            [*(s[i] for s in part), *[0] * (BUFFERS - len(part))] for i in range(3)
        )
        args = struct.pack(f"@{2 * BUFFERS}P{BUFFERS}q", *to, *source, *nbytes)
        most = ceil_div(max(nbytes), ALIGN)
        block = min(MAX_BLOCK, ceil_div(most, 32) * 32)
        yield Launch(
            Kernel("mirror.cu", "mirror"), (len(part), 1, 1), (block, 1, 1), pack(args),
            dependent=True,
        )  # fmt: skip
