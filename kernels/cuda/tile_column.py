"""How blocks share out tiles of sixteen rows and parts of k where tensor cores multiply one column
or a few, and what lies in their shared memory: what mul_mat_one_float.py and tile_fragments.py have
in common (tile_column.cuh)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from .columns import KINDS, Layout, Product, arguments, turns_by
from .launch import DeviceInfo, Kernel, Launch, ceil_div, fast_div, places_of

WARPS, PAIRS = 16, 8  # of a block; of a tile's rows
MAX_STAGES = 8  # of a warp
_SQUARES = 256  # elements whose squares are added first
_ALIGN = 128  # bytes, of what lies in shared memory


@dataclass(frozen=True)
class Tiles:
    """parts: of k. groups: of `blocks` that share the parts of a tile. needed, stages: that a warp
    goes through, and that it has. places: of what lies in shared memory, in the order of
    `TileColumnArgs`."""

    parts: int
    groups: int
    blocks: int
    needed: int
    stages: int
    places: tuple[int, ...]
    shared: int

    def has_stages(self, enough: int) -> bool:
        """Whether a warp has so many, or all that it goes through."""
        return self.stages >= min(enough, self.needed)

    def apart(self, device: DeviceInfo) -> Tiles:
        """The same, of blocks of which no two fit a multiprocessor: where instructions take the
        time, two need twice as long, and leave another one without."""
        return replace(self, shared=max(self.shared, device.shared_among(2) + 1))


def tiles_of(
    p: Product, device: DeviceInfo, parts: int, groups: int, x_bytes: int, sums: int, row: int,
    rings: int, needed: int, blocks: int = 1,
) -> Tiles:  # fmt: skip
    """x_bytes: of the columns. sums: floats. row: bytes of a stage's. rings: warps that have
    stages."""

    def places(stages: int) -> list[int]:
        sizes = (
            8 * (1 + (stages + 1) * WARPS),  # barriers
            4 * p.heads.head_dim if p.heads else 0,
            4 * (ceil_div(p.k, _SQUARES) + WARPS),
            4 * sums,
            x_bytes,
        )
        return places_of(sizes, _ALIGN)

    ring = rings * 2 * PAIRS * row  # bytes of a stage of every warp
    each = ring + ceil_div(8 * WARPS, _ALIGN) * _ALIGN  # and of its barriers
    room = max(0, device.shared_per_block - places(0)[-1]) // each
    stages = min(MAX_STAGES, room, needed)
    at = tuple(places(stages)[1:])
    return Tiles(parts, groups, blocks, needed, stages, at, at[-1] + stages * ring)


def tile_launch(
    p: Product, plan: Tiles, kernel: str, types: str, more: bytes, at: Layout | None = None
) -> Launch:
    """types: the template arguments behind the kind. more: what follows `TileColumnArgs` in the
    kernel's struct. at: of several columns."""
    entry = f"{kernel}<{KINDS[p.kind]}, {types}>"
    return Launch(
        Kernel(f"{kernel}.cu", entry), (plan.groups * plan.blocks, 1, 1), (32 * WARPS, 1, 1),
        _arguments(p, plan, at or Layout()) + more, plan.shared, dependent=True,
    )  # fmt: skip


def _arguments(p: Product, plan: Tiles, at: Layout) -> bytes:
    """`TileColumnArgs` of tile_column.cuh."""
    body = arguments(p, at, p.tiles(PAIRS), 1, plan.stages, 0, 0)
    body += struct.pack("@2P", p.x.address, p.norm.address if p.norm else 0) + turns_by(p)
    share = divmod(p.tiles(PAIRS), plan.groups)
    body += struct.pack("@f2i", p.eps, *share) + fast_div(plan.parts)
    body += struct.pack("@5i", *plan.places)
    return body + bytes(-len(body) % 8)


def are_whole(p: Product) -> bool:
    """Whether the two times eight rows of a tile are each of the same eights."""
    turned = p.heads is not None and p.heads.neox and p.heads.first < 2
    halves = p.heads.head_dim // 2 if p.heads and turned else 0
    return all(pairs % PAIRS == 0 for pairs in p.pairs) and halves % PAIRS == 0
