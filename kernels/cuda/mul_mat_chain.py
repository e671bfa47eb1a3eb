"""Launches mul_mat_chain.cu: 16-bit weights times 2 to 16 columns, on devices with bulk copies, of
which equal bits are asked (`DeviceInfo.equal_bits`)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .columns import (
    FRAGMENTS_IN_ORDER,
    KINDS,
    Product,
    arguments,
    columns_ok,
    layout,
    round_launch,
    rows_ok,
)
from .launch import DeviceInfo, Kernel, Launch, ceil_div, cpp_type, places_of

LEAST, MOST = 2, 16  # columns
_ROWS, _PAIRS = 16, 8  # of a tile, as in mul_mat_chain.cu
_CHUNK = 256  # elements of a stage
_BRINGERS = 2  # warps that bring weights
_MOST_WARPS = 4  # tiles that a block has at once: their chains keep up with memory
_X_STAGES = 4
_MAX_STAGES = 28  # of all tiles; a warp makes their barriers


@dataclass(frozen=True)
class _Plan:
    """How a product is divided. places: of what lies in shared memory, in the order of ChainArgs.

    warps: tiles that a block has at once; rounds: how often it takes some.
    """

    grid: int
    warps: int
    rounds: int
    stages: int
    places: tuple[int, ...]
    shared: int


def _plan(p: Product, device: DeviceInfo) -> _Plan:
    tiles, groups = p.tiles(_PAIRS), ceil_div(p.m, 8)
    grid = min(device.sm_count, tiles)
    most = ceil_div(tiles, grid)
    rounds = ceil_div(most, _MOST_WARPS)
    warps = ceil_div(most, rounds)
    sizes = (
        16 * (_MAX_STAGES + _X_STAGES),  # barriers
        8 * _ROWS * warps,
        _X_STAGES * groups * 16 * _CHUNK,
    )
    places = places_of(sizes, 128)
    # All there is, so that no multiprocessor has two blocks and another none.
    stage = _ROWS * (2 * _CHUNK + 32)
    stages = min(_MAX_STAGES, max(0, device.shared_per_block - places[-1]) // stage) // warps
    return _Plan(grid, warps, rounds, stages, tuple(places[1:]),
                 places[-1] + stages * warps * stage)  # fmt: skip


def takes(p: Product, device: DeviceInfo) -> bool:
    types = {w.dtype for w in p.weights}
    return (
        device.is_hopper
        and device.equal_bits
        and LEAST <= p.m <= MOST
        and len(types) == 1
        and not p.weights[0].dtype.is_quantized
        and all(rows_ok(w, 16, 32) for w in p.weights)
        and columns_ok(p.x)
        and _plan(p, device).stages >= 2
    )


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return layout(p, 8 * ceil_div(p.m, 8)).end


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launches of a product that `takes` takes."""
    plan, columns = _plan(p, device), 8 * ceil_div(p.m, 8)
    at = layout(p, columns, address=scratch)
    body = arguments(p, at, p.tiles(_PAIRS), 1, plan.stages, _X_STAGES, 0)
    share = divmod(p.tiles(_PAIRS), plan.grid)
    body += struct.pack("@7i4x", plan.warps, plan.rounds, *share, *plan.places)
    entry = f"mul_mat_chain<{KINDS[p.kind]}, {cpp_type(p.weights[0].dtype)}, {columns // 8}>"
    kernel = Kernel("mul_mat_chain.cu", entry)
    grid, block = (plan.grid, 1, 1), (32 * (plan.warps + 1 + _BRINGERS), 1, 1)
    product = Launch(kernel, grid, block, body, plan.shared, dependent=True)
    return [round_launch(p, at, columns, FRAGMENTS_IN_ORDER), product]
