"""How blocks share the rows of a matrix with one column: a warp takes a pair of them at a time.

Blocks may start while attention still runs, and read weights until its result is there. There are
as many as multiprocessors, and those that find theirs taken start when it ends: all wait for them.
"""

from __future__ import annotations

from .launch import DeviceInfo, ceil_div

_TAKEN = 16  # multiprocessors that attention over a short context takes, at most
_RESERVED = 1 << 10  # bytes of shared memory that a block takes beside its own


def blocks_of(pairs: int, warps: int, alone: bool, device: DeviceInfo) -> int:
    """Blocks of so many warps. alone: of one matrix, whose blocks are no more than find a
    multiprocessor free, where these do in one round."""
    free = device.sm_count - _TAKEN
    most = free if alone and pairs <= free * warps else device.sm_count
    return max(1, min(most, ceil_div(pairs, 4)))


def stages_of(
    most: int, pairs: int, warps: int, chunks: int, fixed: int, stage: int, device: DeviceInfo
) -> int:
    """Stages of a warp's ring, `most` or as few as it fills, if two blocks fit a multiprocessor
    then: where all have to start at once, some of them share one. chunks: of a row; fixed, stage:
    bytes of shared memory that a block takes, and for each stage."""
    if not (device.sm_count - _TAKEN) * warps < pairs <= device.sm_count * warps:
        return most
    fewer = max(2, min(most, chunks))
    room = (device.shared_per_block + _RESERVED) // 2 - _RESERVED
    return fewer if fixed + fewer * stage <= room else most
