"""Launches mul_mat_tma_many.cu: 16-bit weights times many columns, on Hopper."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import product

from .columns import PLAIN, ROWS, Product, columns_ok, layout, round_launch, row_step, rows_ok
from .launch import DeviceInfo, Kernel, Launch, TensorMap, ceil_div, cpp_type
from .mul_mat_tma import (
    OPTIONS,
    TILE_K,
    TILE_ROW,
    columns_map,
    length_of_parts,
    parts_of,
    ring_of,
)

_LEAST = 17  # columns: fewer are mul_mat_tma.cu's
_ROWS, _THREADS = 128, 384  # as in mul_mat_tma_many.cu
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
        blocks = ceil_div(p.n, _ROWS) * _groups(p, t) * t.blocks
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
    t = p.weights[0].dtype
    return (
        device.arch == "sm_90"
        and p.kind == PLAIN
        and p.m >= _LEAST
        and not t.is_quantized
        and rows_ok(p.weights[0], 16, TILE_K)
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
    [w], at = p.weights, layout(p, 1, address=scratch)
    groups, (stages, shared) = _groups(p, tiles), ring_of(_ROWS, tiles.columns, device)
    parts = max(1, parts_of(p, device))
    args = struct.pack(
        "@3P3q6i", at.scales if p.rounded == "f16" else 0, 0 if p.r is None else p.r.address,
        p.dst.address, *(0, 0) if p.r is None else (p.r.nb[0], row_step(p.r) or 0),
        p.dst.nb[1] // 4, p.n, p.m, p.k // TILE_K,
        length_of_parts(p.k, parts) // TILE_K, groups, stages,
    )  # fmt: skip
    args += bytes(-len(args) % 64)
    of_block = TILE_K, _ROWS // tiles.blocks  # what a block brings of the cluster's rows
    maps = (
        TensorMap(w.address, w.dtype.name, (p.k, p.n), (w.nb[1],), of_block),
        columns_map(at.x, w.dtype, p, tiles.columns),
    )
    entry = f"mul_mat_tma_many<{cpp_type(w.dtype)}, {tiles.columns}, {tiles.blocks}>"
    grid = (ceil_div(p.n, _ROWS) * groups * tiles.blocks, 1, 1)
    made = Launch(Kernel("mul_mat_tma_many.cu", entry, OPTIONS), grid, (_THREADS, 1, 1), args,
                     shared, dependent=True, maps=maps)  # fmt: skip
    return [round_launch(p, at, 1, ROWS), made]
