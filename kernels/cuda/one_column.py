"""How blocks share the rows of a matrix with one column: a warp takes a pair of them at a time.

Blocks may start while attention still runs, and read weights until its result is there. There are
as many as multiprocessors, and those that find theirs taken start when it ends: all wait for them.
So two are to fit one. They lie by twos on half of the multiprocessors then, and the launch behind
fills its stages on the others meanwhile: worth more than what they take longer (docs/LOG.md).
"""

from __future__ import annotations

from collections.abc import Callable

from .launch import DeviceInfo, ceil_div

Size = Callable[[int, int], int]

WARPS = (16, 8, 4)  # of a block; fewer where shared memory is short
TAKEN = 16  # multiprocessors that attention over a short context takes, at most


def blocks_of(pairs: int, warps: int, alone: bool, device: DeviceInfo) -> int:
    """Blocks of so many warps. alone: of one matrix, whose blocks are no more than find a
    multiprocessor free, where these do in one round, or than its warps have two pairs for."""
    free = device.sm_count - TAKEN
    most = device.sm_count
    if alone and pairs <= free * warps:
        most = free
    elif alone and 2 * warps <= WARPS[0] and _at_once(pairs, 2 * warps, device):
        most = ceil_div(pairs, 2 * warps)
    return max(1, min(most, ceil_div(pairs, 4)))


def shape_of(
    warps: int, stages: int, pairs: int, chunks: int, size: Size, device: DeviceInfo
) -> tuple[int, int]:
    """(warps, stages of a warp's ring) of a block of one matrix that could have so many. Where all
    have to start at once they are made smaller, if two fit a multiprocessor then: to as few stages
    as a row fills or, of short rows, to half the warps, each with two pairs. chunks: of a row;
    size: bytes of shared memory of a block of so many warps and stages."""
    if not _at_once(pairs, warps, device):
        return warps, stages
    room = device.shared_among(2)
    few, half = max(2, min(stages, chunks)), warps // 2
    if size(warps, few) <= room:
        return warps, few
    if size(half, stages) <= room and chunks <= stages + 1:
        return half, stages
    return warps, stages


def _at_once(pairs: int, warps: int, device: DeviceInfo) -> bool:
    """Whether it takes more multiprocessors than attention leaves to have a warp for each pair."""
    return (device.sm_count - TAKEN) * warps < pairs <= device.sm_count * warps
