"""Launches mul_mat_tiles.cu: quantized weights times more columns than a pass of mul_mat_columns.cu
has, with the bits that it gives them. On Hopper."""

from __future__ import annotations

from .columns import KINDS, TILES, Product, arguments, layout, round_launch
from .launch import DeviceInfo, Kernel, Launch, ceil_div, cpp_type
from .mul_mat_columns import OPTIONS, THREADS, Tile, parts_of_k, stages
from .mul_mat_columns import cycles as columns_cycles
from .mul_mat_columns import takes as columns_takes
from .mul_mat_columns import tile_for as columns_tile

# What a block does. Of so many columns only without parts of k, whose sums take their registers.
TILE, WIDE = Tile(128, 1), Tile(256, 1)
_STEP = {128: 920, 256: 1400}  # cycles
_LEAST_K = 3072  # without equal bits, see `is_full`
_CLUSTER = 2  # blocks that have columns in common, as in mul_mat_tiles.cu


def tile_for(p: Product, device: DeviceInfo) -> Tile:
    wide = p.m > 128 and parts_of_k(p, device) == 1 and stages(p.weights[0].dtype, WIDE, device)[0]
    return WIDE if wide and (p.m - 1) % 256 >= 128 else TILE


def takes(p: Product, device: DeviceInfo, tile: Tile | None = None) -> bool:
    quantized = all(w.dtype.is_quantized for w in p.weights)
    least, tile = TILE.columns, tile or TILE
    if tile == WIDE and parts_of_k(p, device) > 1:
        return False
    return quantized and p.m > least and columns_takes(p, device, tile)


def is_full(p: Product, device: DeviceInfo) -> bool:
    """Whether nearly all multiprocessors have a tile for nearly all of the time, and rows are long
    enough for a tile's beginning and end not to count: where it was measured to be faster than a
    library (H200, prompts of 512: 8B, phi3-mini and qwen3.5-9b are, falcon-7b, whose second wave
    has 12 of 132 tiles, and gemma3-4b with rows of 2,560 are not)."""
    tile = tile_for(p, device)
    tiles = p.tiles(tile.rows // 2) * ceil_div(p.m, tile.columns)
    slots = ceil_div(tiles, device.sm_count) * device.sm_count
    return p.k >= _LEAST_K and 11 * tiles >= 8 * slots


def is_faster(p: Product, device: DeviceInfo) -> bool:
    """Than mul_mat_columns.cu. Both counted in cycles, as measured on an H200 with Q4_0: of a step
    of 64 elements, of a wave's beginning and end, and of the sums that go through memory."""
    steps, parts, tile = p.k / 64, parts_of_k(p, device), tile_for(p, device)
    blocks = p.tiles(tile.rows // 2) * ceil_div(p.m, tile.columns)
    mine = ceil_div(blocks, device.sm_count) * (steps * _STEP[tile.columns] + 9000)
    other = columns_cycles(p, columns_tile(p, device), device) + 5000
    other += 5000 + 8 * parts * p.m * p.n / 2000 if parts > 1 else 0
    return mine < other


def scratch_bytes(p: Product, device: DeviceInfo, tile: Tile | None = None) -> int:
    return layout(p, (tile or tile_for(p, device)).columns).end


def launches(
    p: Product, device: DeviceInfo, scratch: int, tile: Tile | None = None
) -> list[Launch]:
    """The launches of a product that `takes` takes."""
    tile, t = tile or tile_for(p, device), p.weights[0].dtype
    at, n = layout(p, tile.columns, address=scratch), tile.columns
    tiles, groups = p.tiles(tile.rows // 2), ceil_div(p.m, n)
    w_stages, x_stages, shared = stages(t, tile, device)
    args = arguments(p, at, tiles, parts_of_k(p, device), w_stages, x_stages, 0)
    entry = f"mul_mat_tiles<{KINDS[p.kind]}, {cpp_type(t)}, {n}>"
    grid = (ceil_div(tiles, _CLUSTER) * _CLUSTER * groups, 1, 1)
    return [
        round_launch(p, at, n, TILES),
        Launch(Kernel("mul_mat_tiles.cu", entry, OPTIONS), grid, (THREADS, 1, 1), args, shared,
               dependent=True),
    ]  # fmt: skip
