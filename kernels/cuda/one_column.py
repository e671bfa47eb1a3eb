"""How blocks share the rows of a matrix with one column: a warp takes a pair of them at a time.

Blocks may start while attention still runs, and read weights until its result is there. There are
as many as multiprocessors, and those that find theirs taken start when it ends: all wait for them.
"""

from __future__ import annotations

from .launch import DeviceInfo, ceil_div

WARPS = (16, 8, 4)  # of a block; fewer where shared memory is short
_TAKEN = 16  # multiprocessors that attention over a short context takes, at most
_ATTENTION = 72 << 10  # bytes of shared memory of its blocks, but for `Launch.roomy`


def blocks_of(pairs: int, warps: int, alone: bool, device: DeviceInfo) -> int:
    """Blocks of so many warps. alone: of one matrix, whose blocks are no more than find a
    multiprocessor free, where these do in one round, or than its warps have two pairs for."""
    free = device.sm_count - _TAKEN
    most = device.sm_count
    if alone and pairs <= free * warps:
        most = free
    elif alone and 2 * warps <= WARPS[0] and _at_once(pairs, 2 * warps, device):
        most = ceil_div(pairs, 2 * warps)
    return max(1, min(most, ceil_div(pairs, 4)))


def shape_of(
    warps: int, stages: int, pairs: int, chunks: int, fixed: int, stage: int, device: DeviceInfo
) -> tuple[int, int]:
    """(warps, stages of a warp's ring) of a block of one matrix that could have so many. Where all
    have to start at once they are made smaller: to as few stages as a row fills, if two blocks fit
    a multiprocessor then, or, of short rows, to half the warps, each with two pairs, if one fits
    beside attention. chunks: of a row; fixed, stage: bytes of shared memory that a block takes, and
    for each stage of a warp."""
    if not _at_once(pairs, warps, device):
        return warps, stages
    few, half = max(2, min(stages, chunks)), warps // 2
    if fixed + warps * few * stage <= device.shared_among(2):
        return warps, few
    beside = fixed + half * stages * stage <= device.shared_beside(_ATTENTION)
    return (half, stages) if beside and chunks <= stages + 1 else (warps, stages)


def _at_once(pairs: int, warps: int, device: DeviceInfo) -> bool:
    """Whether it takes more multiprocessors than attention leaves to have a warp for each pair."""
    return (device.sm_count - _TAKEN) * warps < pairs <= device.sm_count * warps
