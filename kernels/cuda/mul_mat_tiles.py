"""Launches mul_mat_tiles.cu: quantized weights times more columns than a pass of mul_mat_columns.cu
has, with the bits that it gives them. On Hopper."""

from __future__ import annotations

from .columns import TILES, Product, arguments, layout, round_launch
from .launch import DeviceInfo, Kernel, Launch, ceil_div, cpp_type
from .mul_mat_columns import OPTIONS, THREADS, Tile, parts_of_k, stages
from .mul_mat_columns import takes as columns_takes

TILE = Tile(128, 1)  # of a block
_CLUSTER = 2  # blocks that have columns in common, as in mul_mat_tiles.cu
_KINDS = ("PLAIN", "GLU", "QKV")  # as numbered in columns.py


def takes(p: Product, device: DeviceInfo) -> bool:
    quantized = all(w.dtype.is_quantized for w in p.weights)
    return quantized and p.m > TILE.columns and columns_takes(p, device, TILE)


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return layout(p, TILE.columns).end


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launches of a product that `takes` takes."""
    t, at = p.weights[0].dtype, layout(p, TILE.columns, address=scratch)
    tiles, groups = p.tiles(TILE.rows // 2), ceil_div(p.m, TILE.columns)
    w_stages, x_stages, shared = stages(t, TILE, device)
    args = arguments(p, at, tiles, parts_of_k(p, device), w_stages, x_stages, 0)
    kernel = Kernel("mul_mat_tiles.cu", f"mul_mat_tiles<{_KINDS[p.kind]}, {cpp_type(t)}>", OPTIONS)
    grid = (ceil_div(tiles, _CLUSTER) * _CLUSTER * groups, 1, 1)
    return [
        round_launch(p, at, TILE.columns, TILES),
        Launch(kernel, grid, (THREADS, 1, 1), args, shared, dependent=True),
    ]
