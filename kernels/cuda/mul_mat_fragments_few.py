"""Launches mul_mat_fragments_few.cu: 2 to 16 columns times quantized weights that lie as fragments
too, with the bits of mul_mat_columns.cu."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from . import mul_mat_columns
from .columns import FRAGMENTS, Product, columns_ok, layout, round_launch
from .compact import FRAGMENTS as LAYOUT
from .compact import compact_rows, is_compact
from .fragments import UNIT, fragment_row_bytes
from .launch import DeviceInfo, Launch, ceil_div, cpp_type
from .tile_column import PAIRS, Tiles, are_whole, tile_launch, tiles_of

MOST = 16
_COLUMNS = (2, 4, 8, 16)  # that lie together
_UNITS = (2, 1)  # of a stage's rows
_BLOCKS = (1, 2, 4)  # that share the parts of a tile: a cluster
_ENOUGH = 2  # stages of a warp
_EARLY = 1  # stages that are asked for before the columns


@dataclass(frozen=True)
class _Plan:
    columns: int
    units: int
    tiles: Tiles


def _plan(p: Product, device: DeviceInfo) -> _Plan | None:
    """With as few blocks to a tile as its columns leave room for."""
    columns = next(c for c in _COLUMNS if c >= p.m)
    for blocks in _BLOCKS:
        for units in _UNITS:
            tiles = _tiles(p, device, columns, units, blocks)
            if tiles and tiles.has_stages(_ENOUGH):
                return _Plan(columns, units, tiles)
    return None


def _tiles(p: Product, device: DeviceInfo, columns: int, units: int, blocks: int) -> Tiles | None:
    """Nothing where a cluster would not have all its tiles at once."""
    parts, chunks = mul_mat_columns.parts_of_k(p, device), p.k // UNIT
    if parts % blocks:
        return None
    here, grid = parts // blocks, min(device.sm_count // blocks, p.tiles(PAIRS))
    most = max(chunks * here * (r + 1) // parts - chunks * here * r // parts for r in range(blocks))
    row = fragment_row_bytes(p.weights[0].dtype, units * UNIT)
    of_part = ceil_div(ceil_div(chunks, parts), units)
    plan = tiles_of(
        p, device, parts, grid, 2 * UNIT * most * columns, row, of_part, blocks, columns
    )
    return plan if blocks == 1 or plan.tiles >= ceil_div(p.tiles(PAIRS), grid) else None


def takes(p: Product, device: DeviceInfo) -> bool:
    return (
        device.is_hopper
        and 1 < p.m <= MOST
        and p.chunk
        and len({w.dtype for w in p.weights}) == 1
        and is_compact(p.weights, LAYOUT)
        and are_whole(p)
        and columns_ok(p.x)
        and _plan(p, device) is not None
    )


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return layout(p, MOST).end


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launches of a product that `takes` takes."""
    plan = _plan(p, device)
    assert plan is not None
    at = layout(p, plan.columns, 0, scratch)
    lying = replace(p, weights=tuple(map(compact_rows, p.weights)))
    numbers = f"{plan.units}, {plan.columns}, {plan.tiles.blocks}"
    types, more = f"{cpp_type(p.weights[0].dtype)}, {numbers}", struct.pack("@2i", _EARLY, 0)
    return [
        round_launch(p, at, plan.columns, FRAGMENTS),
        tile_launch(lying, plan.tiles, "mul_mat_fragments_few", types, more, at),
    ]
