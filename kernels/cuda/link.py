"""Launches link.cu, which belongs to no op: signals to the host or a device, waits, and copies."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from .launch import Kernel, Launch, ceil_div, pack

PIECES = 8  # kPieces of link.cu
WORD = 16  # bytes a thread copies at once
BLOCK = 1024
MAX_BLOCKS = 32  # enough to fill the bus; all of them fit on a device at once

Span = tuple[int, int, int]  # to, from, bytes

SIGNAL, WAIT = Kernel("link.cu", "link_signal"), Kernel("link.cu", "link_wait")


def signal(flag: int, spans: Sequence[Span], ticket: int) -> list[Launch]:
    """Copy to pinned memory or another device's, then set the flag. ticket: a zeroed word of device
    memory that the launches of one stream share."""
    *before, last = _groups(spans)
    return [*(_launch(SIGNAL, g) for g in before), _launch(SIGNAL, last, flag, ticket)]


def wait(
    flag: int, spans: Sequence[Span], ticket: int, given_up: int, code: int, timeout_ns: int
) -> list[Launch]:
    """Wait for the flag, take it back and copy from pinned memory, if anything. See `Flag`."""
    first, *after = _groups(spans)
    waiting = _launch(WAIT, first, flag, ticket, given_up, code, timeout_ns)
    return [waiting, *(_launch(WAIT, g) for g in after)]


def idle(kernel: Kernel) -> Launch:
    """A launch that does nothing, to have the kernel loaded."""
    return _launch(kernel, ())


def _groups(spans: Sequence[Span]) -> list[Sequence[Span]]:
    return [spans[i : i + PIECES] for i in range(0, len(spans), PIECES)] or [()]


def _launch(
    kernel: Kernel,
    spans: Sequence[Span],
    flag: int = 0,
    ticket: int = 0,
    given_up: int = 0,
    code: int = 0,
    timeout_ns: int = 0,
) -> Launch:
    words = [ceil_div(nbytes, WORD) for _, _, nbytes in spans]
    pieces = b"".join(
        struct.pack("@PPq", to, source, n) for (to, source, _), n in zip(spans, words, strict=True)
    )
    head = struct.pack("@PPPqIi", flag, given_up, ticket, timeout_ns, code, len(spans))
    args = pack((head + pieces).ljust(len(head) + PIECES * struct.calcsize("@PPq"), b"\0"))
    most = max(words, default=1)
    block = min(BLOCK, ceil_div(most, 32) * 32)
    grid = min(ceil_div(most, block), MAX_BLOCKS)
    return Launch(kernel, (grid, 1, 1), (block, 1, 1), args, dependent=True)
