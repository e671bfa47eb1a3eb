"""Launches of which a block begins while the one before still runs, where a multiprocessor has room
for both."""

from __future__ import annotations

from collections.abc import Sequence

from .gemm import Gemm
from .launch import DeviceInfo, Launch

_RESERVED = 1 << 10  # bytes of shared memory that a block takes beside its own
_STATIC = 6 << 10  # that attention and a product declare themselves


def fit(a: Launch, b: Launch, device: DeviceInfo) -> bool:
    """Whether a block of each has room on one multiprocessor."""
    room = device.shared_per_block + _RESERVED
    return a.shared + b.shared + 2 * _RESERVED + _STATIC <= room


def with_room(
    made: Sequence[Sequence[Launch | Gemm]], device: DeviceInfo
) -> list[list[Launch | Gemm]]:
    """The launches of ops, each as `Launch.roomy` where the one before leaves it no room."""
    before: Launch | Gemm | None = None
    chosen: list[list[Launch | Gemm]] = []
    for op in made:
        chosen.append([])
        for x in op:
            if (
                isinstance(x, Launch)
                and x.roomy is not None
                and isinstance(before, Launch)
                and not fit(before, x, device)
            ):
                before = x.roomy
            else:
                before = x
            chosen[-1].append(before)
    return chosen
