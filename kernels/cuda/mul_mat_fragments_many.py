"""Launches mul_mat_fragments_many.cu: 17 to 128 columns times quantized weights that lie as
fragments too, with the bits of mul_mat_columns.cu."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from . import tile_fragments
from .columns import TILES, Product, arguments, round_launch
from .compact import compact_rows
from .fragments import UNIT, fragment_row_bytes
from .launch import DeviceInfo, Kernel, Launch, cpp_type
from .mul_mat_columns import OPTIONS, Tile, layout_of, parts_of_k

_SOURCE = "mul_mat_fragments_many.cu"
_CONSUMERS, _THREADS = 512, 640  # of a block
_TILE_K, _STRIDE = 64, 260
_LEAST, MOST = 17, 128  # columns
_MOST_STAGES = 8  # of weights
_UNITS = (2, 1)  # of one, the most that leave two: longer copies are faster
_COLUMN_STAGES = {32: 12, 64: 8, 128: 5}  # by the columns of a block


def _tile(p: Product) -> Tile:
    """What a block does: all columns of 256 rows."""
    return Tile(next(n for n in _COLUMN_STAGES if p.m <= n), 2)


class _Stages(NamedTuple):
    """units, n: of a stage of weights, and how many there are. shared: bytes."""

    units: int
    n: int
    shared: int


def _stages(p: Product, device: DeviceInfo) -> _Stages:
    tile = _tile(p)
    n = tile.columns
    x = _COLUMN_STAGES[n] * (2 * n * _TILE_K + 16)
    sums = 4 * n * _STRIDE
    for units in _UNITS:
        w = tile.rows * fragment_row_bytes(p.weights[0].dtype, units * UNIT) + 16
        stages = min(_MOST_STAGES, (device.shared_per_block - 1024 - x) // w)
        if stages > 1:
            break
    return _Stages(units, stages, 1024 + max(x + stages * w, sums))


def takes(p: Product, device: DeviceInfo) -> bool:
    return (
        _LEAST <= p.m <= MOST
        and device.arch == "sm_90"
        and tile_fragments.takes(p, device)
        and _stages(p, device).n > 1
    )


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return layout_of(p, _tile(p), device).end


def room(p: Product, device: DeviceInfo) -> int:
    """Bytes of scratch memory for a product that `takes` may take."""
    may = device.has_fragments and p.weights[0].dtype.is_quantized and _LEAST <= p.m <= MOST
    return scratch_bytes(p, device) if may else 0


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launches of a product that `takes` takes."""
    tile, splits = _tile(p), parts_of_k(p, device)
    n, tiles = tile.columns, p.tiles(tile.rows // 2)
    at = layout_of(p, tile, device, scratch)
    units, w_stages, shared = _stages(p, device)
    lying = replace(p, weights=tuple(map(compact_rows, p.weights)))
    args = arguments(lying, at, tiles, splits, w_stages, _COLUMN_STAGES[n], 0)
    types = f"{cpp_type(p.weights[0].dtype)}, {n}, {units}"
    kernel = Kernel(_SOURCE, f"mul_mat_fragments_many<{types}>", OPTIONS)
    made = [
        round_launch(p, at, n, TILES),
        Launch(kernel, (tiles, splits, 1), (_THREADS, 1, 1), args, shared, dependent=True),
    ]
    if splits > 1:
        kernel = Kernel(_SOURCE, f"sum_fragments<{n}>", OPTIONS)
        grid = n // 8, tiles, 1
        made.append(Launch(kernel, grid, (_CONSUMERS, 1, 1), args, dependent=True))
    return made
