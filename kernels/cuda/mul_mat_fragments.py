"""Launches mul_mat_fragments.cu: one column times quantized weights that lie as fragments too, with
the bits of mul_mat_columns.cu."""

from __future__ import annotations

import struct
from dataclasses import replace

from . import mul_mat_columns
from .columns import Product, columns_ok
from .compact import FRAGMENTS, compact_rows, is_compact
from .elementwise import cpp_bool
from .fragments import UNIT, fragment_row_bytes
from .launch import DeviceInfo, Launch, ceil_div, cpp_type
from .tile_column import PAIRS, Tiles, are_whole, tile_launch, tiles_of

# Units of a stage's rows: as many as leave a warp so many stages, or all that it goes through.
_UNITS, _ENOUGH = (2, 1), 2
_EARLY = 1  # stages that are asked for before the column, which is behind them (docs/LOG.md)


def _plan(p: Product, device: DeviceInfo) -> tuple[int, Tiles]:
    """Units of a stage's rows, and what follows."""
    plans = [(units, _plan_of(p, device, units)) for units in _UNITS]
    return next((x for x in plans if x[1].has_stages(_ENOUGH)), plans[-1])


def _plan_of(p: Product, device: DeviceInfo, units: int) -> Tiles:
    parts = mul_mat_columns.parts_of_k(p, device)
    row = fragment_row_bytes(p.weights[0].dtype, units * UNIT)
    of_part = ceil_div(ceil_div(p.k // UNIT, parts), units)
    grid = min(device.sm_count, p.tiles(PAIRS))
    return tiles_of(p, device, parts, grid, 2 * p.k, row, of_part)


def takes(p: Product, device: DeviceInfo) -> bool:
    return (
        device.is_hopper
        and p.m == 1
        and p.chunk
        and len({w.dtype for w in p.weights}) == 1
        and is_compact(p.weights, FRAGMENTS)
        and are_whole(p)
        and columns_ok(p.x)
        and _plan(p, device)[1].stages > 0
    )


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return 0


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launch of a product that `takes` takes."""
    units, plan = _plan(p, device)
    types = f"{cpp_type(p.weights[0].dtype)}, {cpp_bool(p.norm is not None)}, {units}"
    p = replace(p, weights=tuple(map(compact_rows, p.weights)))
    return [tile_launch(p, plan, "mul_mat_fragments", types, struct.pack("@2i", _EARLY, 0))]
