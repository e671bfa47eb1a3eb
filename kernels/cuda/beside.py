"""Launches of which a block begins while the one before still runs, where a multiprocessor has room
for both."""

from __future__ import annotations

from collections.abc import Sequence

from .gemm import Gemm
from .launch import DeviceInfo, Launch

_STATIC = 2 << 10  # bytes of shared memory that a product declares itself, at most


def left_by(before: Launch, device: DeviceInfo) -> int:
    """Bytes of shared memory that a block of a launch leaves another one on its multiprocessor."""
    return device.shared_beside(before.shared + _STATIC)


def with_room(
    made: Sequence[Sequence[Launch | Gemm]], device: DeviceInfo
) -> list[list[Launch | Gemm]]:
    """The launches of ops, each as `Launch.roomy` where the one before leaves no room for two
    thirds of it (docs/LOG.md)."""
    before: Launch | Gemm | None = None
    chosen: list[list[Launch | Gemm]] = []
    for op in made:
        chosen.append([])
        for x in op:
            if (
                isinstance(x, Launch)
                and x.roomy is not None
                and isinstance(before, Launch)
                and left_by(before, device) < 2 * x.shared // 3
            ):
                before = x.roomy
            else:
                before = x
            chosen[-1].append(before)
    return chosen
