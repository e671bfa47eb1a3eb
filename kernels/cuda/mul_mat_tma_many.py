"""Launches mul_mat_tma_many.cu: 16-bit weights times many columns, on Hopper."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from .columns import KINDS, PLAIN, ROWS, Product, columns_ok, layout, round_launch, rows_ok
from .launch import DeviceInfo, Kernel, Launch, TensorMap, ceil_div, cpp_type
from .mul_mat_tma import (
    OPTIONS,
    TILE_K,
    TILE_ROW,
    columns_map,
    covers,
    ring_of,
    rows_maps,
    tma_arguments,
    usual_parts,
)

_LEAST = 17  # columns: fewer are mul_mat_tma.cu's
_ROWS, _PAIRS, _THREADS = 128, 64, 384  # as in mul_mat_tma_many.cu
_COLUMNS = (128, 112, 96, 80, 64, 48, 32)  # a block may have
_LEAST_STAGES = 3
# Nanoseconds of a H200: a tile of k, and what each column adds to that; bytes of the second-level
# cache in one; beginning and ending a block, what each column adds, and a cluster.
_TILE, _COLUMN, _BYTES, _BLOCK, _BLOCK_COLUMN, _CLUSTER = 100, 2.4, 8500, 1000, 8, 500


@dataclass(frozen=True)
class Tiles:
    """columns: of a block. blocks: of a cluster, with the same rows."""

    columns: int
    blocks: int = 1


def tiles_for(p: Product, device: DeviceInfo) -> Tiles:
    """Those that take least time. A column's sums do not depend on them."""

    def cost(t: Tiles) -> float:
        blocks = p.tiles(_PAIRS) * _groups(p, t) * t.blocks
        turns = ceil_div(blocks, device.clusters(t.blocks) * t.blocks)
        brought = (_ROWS // t.blocks + t.columns) * TILE_ROW * blocks / turns
        tile = max(_TILE + _COLUMN * t.columns, brought / _BYTES)
        each = p.k // TILE_K * tile + _BLOCK + _BLOCK_COLUMN * t.columns
        return turns * each + _CLUSTER * (t.blocks - 1)

    return min((Tiles(*t) for t in product(_COLUMNS, (1, 2))), key=cost)


def _groups(p: Product, t: Tiles) -> int:
    """Of columns, that a cluster has."""
    return ceil_div(p.m, t.columns * t.blocks)


def takes(p: Product, device: DeviceInfo) -> bool:
    """Pairs of rows as mul_mat_tma.cu has them, and any rows of one matrix."""
    t = p.weights[0].dtype
    return (
        device.arch == "sm_90"
        and p.m >= _LEAST
        and not t.is_quantized
        and (covers(p, device) if p.kind != PLAIN else rows_ok(p.weights[0], 16, TILE_K))
        and columns_ok(p.x)
        and ring_of(_ROWS, _COLUMNS[0], device)[0] >= _LEAST_STAGES
    )


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return layout(p, 1).end


def launches(
    p: Product, device: DeviceInfo, scratch: int, tiles: Tiles | None = None
) -> list[Launch]:
    """The launches of a product that `takes` takes. tiles: others than `tiles_for` chooses."""
    tiles = tiles or tiles_for(p, device)
    t, at = p.weights[0].dtype, layout(p, 1, address=scratch)
    shares, n_tiles = _groups(p, tiles), p.tiles(_PAIRS)
    stages, shared = ring_of(_ROWS, tiles.columns, device)
    parts = max(1, usual_parts(p, device))
    args = tma_arguments(p, at, at.scales, n_tiles, parts, stages, shares)
    maps = rows_maps(p) if p.kind != PLAIN else (_map(p, _ROWS // tiles.blocks),) * 3
    maps += (columns_map(at.x, t, p, tiles.columns),)
    entry = f"mul_mat_tma_many<{KINDS[p.kind]}, {cpp_type(t)}, {tiles.columns}, {tiles.blocks}>"
    grid = (n_tiles * shares * tiles.blocks, 1, 1)
    made = Launch(Kernel("mul_mat_tma_many.cu", entry, OPTIONS), grid, (_THREADS, 1, 1), args,
                  shared, dependent=True, maps=maps)  # fmt: skip
    return [round_launch(p, at, 1, ROWS), made]


def _map(p: Product, rows: int) -> TensorMap:
    """Of one matrix as it lies, of which a block brings so many rows."""
    w = p.weights[0]
    return TensorMap(w.address, w.dtype.name, (p.k, p.n), (w.nb[1],), (TILE_K, rows))
