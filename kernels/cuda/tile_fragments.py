"""Products of one column or a few and quantized weights that lie as fragments too: what
mul_mat_fragments.py and mul_mat_fragments_few.py have in common (tile_fragments.cuh)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from . import mul_mat_columns
from .columns import Layout, Product, columns_ok
from .compact import FRAGMENTS, compact_rows, is_compact
from .fragments import UNIT, fragment_row_bytes
from .launch import DeviceInfo, Launch, ceil_div, cpp_type, fast_div
from .tile_column import PAIRS, WARPS, Tiles, are_whole, tile_launch, tiles_of

# Units of a stage's rows: as many as leave a warp so many stages, or all that it goes through.
_UNITS, _ENOUGH = (2, 1), 2
_EARLY = 1  # stages that are asked for before the columns, which are behind them (docs/LOG.md)
_SUMS = 2 * PAIRS  # of a column in a tile


@dataclass(frozen=True)
class Plan:
    """columns: that lie together. units: of a stage's rows."""

    columns: int
    units: int
    tiles: Tiles


def plan_of(p: Product, device: DeviceInfo, columns: int, sizes: Sequence[int]) -> Plan | None:
    """sizes: of groups of blocks, of which the first that leaves room for the columns is chosen."""
    for blocks in sizes:
        for units in _UNITS:
            tiles = _tiles(p, device, columns, units, blocks)
            if tiles and tiles.has_stages(_ENOUGH):
                return Plan(columns, units, tiles)
    return None


def _tiles(p: Product, device: DeviceInfo, columns: int, units: int, blocks: int) -> Tiles | None:
    parts, of_k, tiles = mul_mat_columns.parts_of_k(p, device), p.k // UNIT, p.tiles(PAIRS)
    if parts % blocks:
        return None
    groups = min(device.clusters(blocks), tiles)
    shares = [
        _share(parts, blocks, of_k, n, units) for n in {tiles // groups, ceil_div(tiles, groups)}
    ]
    span, warps, stages, sums = map(max, zip(*shares, strict=True))
    return tiles_of(
        p, device, parts, groups, 2 * UNIT * span * columns, sums * _SUMS * columns,
        fragment_row_bytes(p.weights[0].dtype, units * UNIT), warps, stages, blocks,
    )  # fmt: skip


class _Share(NamedTuple):
    """Of a group with so many tiles, what its blocks have at most. span: units of k. warps: that
    have some. stages: that a warp goes through. sums: of chains, and of those that go from warp to
    warp."""

    span: int
    warps: int
    stages: int
    sums: int


@cache
def _share(parts: int, blocks: int, of_k: int, tiles: int, units: int) -> _Share:
    """As TileFragments of tile_fragments.cuh divides a group's tiles."""
    here = parts // blocks
    begins = [of_k * i // parts for i in range(parts + 1)]
    spans = [begins[i + here] - begins[i] for i in range(0, parts, here)]
    most, is_cut = 0, False
    for rank, span in enumerate(spans):
        warps = min(WARPS, tiles * span)
        cuts = {tiles * span * i // warps for i in range(1, warps + 1)}
        first = rank * here
        ends = {
            t * span + begins[i] - begins[first]
            for t in range(tiles)
            for i in range(first + 1, first + here + 1)
        }
        stages = begin = 0
        for end in sorted(cuts | ends):
            stages += ceil_div(end - begin, units)
            most, begin = max(most, stages), end
            if end in cuts:
                stages = 0
        is_cut |= not cuts <= ends
    chains = ceil_div(tiles, blocks) * parts if parts > 1 else 0
    warps = min(WARPS, tiles * max(spans))
    return _Share(max(spans), warps, most, chains + (WARPS if is_cut else 0))


def takes(p: Product, device: DeviceInfo) -> bool:
    """Whether there is such a product, but for room."""
    return (
        device.is_hopper
        and p.chunk
        and len({w.dtype for w in p.weights}) == 1
        and is_compact(p.weights, FRAGMENTS)
        and are_whole(p)
        and columns_ok(p.x)
    )


def fragments_product(
    p: Product, plan: Plan, kernel: str, numbers: str, at: Layout | None = None
) -> Launch:
    """numbers: the template arguments behind the type. at: of several columns."""
    lying = replace(p, weights=tuple(map(compact_rows, p.weights)))
    more = fast_div(p.k // UNIT) + struct.pack("@i", _EARLY)
    types = f"{cpp_type(p.weights[0].dtype)}, {numbers}"
    return tile_launch(lying, plan.tiles, kernel, types, more, at)
