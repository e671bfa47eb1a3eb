"""How a block shares out tiles of sixteen rows and parts of k where tensor cores multiply one
column: what mul_mat_one_float.py and mul_mat_fragments.py have in common (tile_column.cuh)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .columns import KINDS, Layout, Product, arguments, turns_by
from .launch import DeviceInfo, Kernel, Launch, ceil_div, fast_div, places_of

WARPS, PAIRS = 16, 8  # of a block; of a tile's rows
MAX_STAGES = 8  # of a warp
_SQUARES = 256  # elements whose squares are added first


@dataclass(frozen=True)
class Tiles:
    """parts: of k. grid: groups of `blocks` that share the parts of a tile. tiles: that a group has
    at once. needed, stages: that a warp goes through, and that it has. places: of what lies in
    shared memory, in the order of `TileColumnArgs`."""

    parts: int
    grid: int
    blocks: int
    tiles: int
    needed: int
    stages: int
    places: tuple[int, ...]
    shared: int

    def has_stages(self, enough: int) -> bool:
        """Whether a warp has so many, or all that it goes through."""
        return self.stages >= min(enough, self.needed)


def tiles_of(
    p: Product, device: DeviceInfo, parts: int, grid: int, x_bytes: int, row: int, of_part: int,
    blocks: int = 1, columns: int = 1,
) -> Tiles:  # fmt: skip
    """parts: of k, at most one a warp. grid: groups of `blocks` that share the parts of a tile.
    x_bytes: of the columns. row: bytes of a stage's. of_part: stages that a tile's part takes."""
    here = parts // blocks
    at_once = WARPS // here
    most = ceil_div(p.tiles(PAIRS), grid)  # of a group
    rounds = ceil_div(most, at_once)
    tiles = ceil_div(most, rounds)
    sizes = (
        8 * MAX_STAGES * WARPS,  # barriers
        4 * p.heads.head_dim if p.heads else 0,
        4 * (ceil_div(p.k, _SQUARES) + WARPS),
        4 * 2 * PAIRS * columns * (2 * WARPS if columns == 1 else parts * ceil_div(tiles, blocks)),
        x_bytes,
    )
    places = places_of(sizes, 128)
    all_stages = tiles * here * 2 * PAIRS * row  # of all warps
    room = max(0, device.shared_per_block - places[-1]) // all_stages
    needed = rounds * of_part
    stages = min(MAX_STAGES, room, needed)
    return Tiles(parts, grid, blocks, tiles, needed, stages,
                 tuple(places[1:]), places[-1] + stages * all_stages)  # fmt: skip


def tile_launch(
    p: Product, plan: Tiles, kernel: str, types: str, more: bytes, at: Layout | None = None
) -> Launch:
    """types: the template arguments behind the kind. more: what follows `TileColumnArgs` in the
    kernel's struct. at: of several columns."""
    entry = f"{kernel}<{KINDS[p.kind]}, {types}>"
    return Launch(
        Kernel(f"{kernel}.cu", entry), (plan.grid * plan.blocks, 1, 1), (32 * WARPS, 1, 1),
        _arguments(p, plan, at or Layout()) + more, plan.shared, dependent=True,
    )  # fmt: skip


def _arguments(p: Product, plan: Tiles, at: Layout) -> bytes:
    """`TileColumnArgs` of tile_column.cuh."""
    body = arguments(p, at, p.tiles(PAIRS), 1, plan.stages, 0, 0)
    body += struct.pack("@2P", p.x.address, p.norm.address if p.norm else 0) + turns_by(p)
    share = divmod(p.tiles(PAIRS), plan.grid)
    body += struct.pack("@f3i", p.eps, plan.tiles, *share) + fast_div(plan.parts)
    body += struct.pack("@5i", *plan.places)
    return body + bytes(-len(body) % 8)


def are_whole(p: Product) -> bool:
    """Whether the two times eight rows of a tile are each of the same eights."""
    turned = p.heads is not None and p.heads.neox and p.heads.first < 2
    halves = p.heads.head_dim // 2 if p.heads and turned else 0
    return all(pairs % PAIRS == 0 for pairs in p.pairs) and halves % PAIRS == 0
