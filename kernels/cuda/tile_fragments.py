"""Products of one column or a few and quantized weights that lie as fragments too: what
mul_mat_fragments.py and mul_mat_fragments_few.py have in common (tile_fragments.cuh)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product
from typing import NamedTuple

from . import mul_mat_columns, next_fragments
from .columns import Layout, Product, columns_ok
from .compact import FRAGMENTS, compact_rows, is_compact
from .elementwise import cpp_bool
from .fragments import UNIT, fragment_row_bytes
from .launch import DeviceInfo, Launch, ceil_div, cpp_type, fast_div
from .next_fragments import Left
from .tile_column import PAIRS, WARPS, Tiles, are_whole, tile_launch, tiles_of

UNITS = (2, 1)  # of a stage's rows, the most that there is room for
# Stages that a warp is to have, or all that it goes through; or one, while which is filled other
# warps multiply.
_ENOUGH = (2, 1)
_EARLY = 1  # stages that are asked for before the columns, which are behind them (docs/LOG.md)
_SUMS = 2 * PAIRS  # of a column in a tile
_ZEROS = 64 + 2 * UNIT  # bytes behind a single column, see tile_fragments.cuh
_SCHEDULERS = 4  # of a multiprocessor, each of every fourth warp
_EVEN = 1.05  # what the one with most may have of what each has in the mean
_LONG = 8  # units of a chain


@dataclass(frozen=True)
class Plan:
    """columns: that lie together. units: of a stage's rows. whole: whether a warp has a chain."""

    columns: int
    units: int
    whole: bool
    tiles: Tiles


def plan_of(
    p: Product, device: DeviceInfo, columns: int, sizes: Sequence[int], units_of: Sequence[int]
) -> Plan | None:
    """sizes: of groups of blocks, units_of: of a stage's rows, of which the first are chosen that
    leave room for the columns and a warp enough stages."""
    for enough, blocks, units in product(_ENOUGH, sizes, units_of):
        plan = _plan(p, device, columns, units, blocks)
        if plan and plan.tiles.has_stages(enough):
            return plan
    return None


def _plan(p: Product, device: DeviceInfo, columns: int, units: int, blocks: int) -> Plan | None:
    parts, of_k, tiles = mul_mat_columns.parts_of_k(p, device), p.k // UNIT, p.tiles(PAIRS)
    if parts % blocks:
        return None
    groups = min(device.clusters(blocks), tiles)
    of_group = ceil_div(tiles, groups)
    share = _share(parts, blocks, of_k, of_group, units)
    zeros = _ZEROS if columns == 1 else 0
    made = tiles_of(
        p, device, parts, groups, 2 * UNIT * share.span * columns + zeros,
        share.sums * _SUMS * columns + columns + 1,  # and how large results are
        fragment_row_bytes(p.weights[0].dtype, units * UNIT), share.warps, share.stages, blocks,
    )  # fmt: skip
    if columns > 1:  # a single column's registers leave no room for two
        made = made.apart(device)
    return Plan(columns, units, share.whole, made)


class _Share(NamedTuple):
    """Of a group with so many tiles, what its blocks have at most. span: units of k. warps: that
    have some. stages: that a warp goes through. sums: of chains, and of those that go from warp to
    warp. whole: whether a warp has a chain."""

    span: int
    warps: int
    stages: int
    sums: int
    whole: bool


@cache
def _share(parts: int, blocks: int, of_k: int, tiles: int, units: int) -> _Share:
    """As TileFragments of tile_fragments.cuh divides a group's tiles."""
    here = parts // blocks
    begins = [of_k * i // parts for i in range(parts + 1)]
    lengths = [end - begin for begin, end in pairwise(begins)]
    span = max(sum(lengths[i : i + here]) for i in range(0, parts, here))
    chains = tiles * here
    whole = chains <= WARPS and _is_even(lengths, here, tiles)
    warps = chains if whole else min(WARPS, tiles * span)
    # Units of a warp, in pieces of chains, of which each ends with a stage.
    n = max(lengths) if whole else ceil_div(tiles * span, warps)
    pieces = 1 if whole else 1 + ceil_div(n, min(lengths))
    stages = ceil_div(n, units) + (pieces - 1 if units > 1 else 0)
    sums = ceil_div(tiles, blocks) * parts if parts > 1 else 0
    return _Share(span, warps, stages, sums + (0 if whole else WARPS), whole)


def _is_even(lengths: Sequence[int], here: int, tiles: int) -> bool:
    """Whether schedulers have about as much to do each if a warp has a chain, or chains are short,
    and handing them over takes longer than it saves."""
    for i in range(0, len(lengths), here):
        chains = list(lengths[i : i + here]) * tiles
        most = max(sum(chains[s::_SCHEDULERS]) for s in range(_SCHEDULERS))
        if max(chains) >= _LONG and _SCHEDULERS * most > _EVEN * sum(chains):
            return False
    return True


def takes(p: Product, device: DeviceInfo) -> bool:
    """Whether there is such a product, but for room."""
    return (
        device.is_hopper
        and (p.chunk or device.has_fragments)
        and len({w.dtype for w in p.weights}) == 1
        and is_compact(p.weights, FRAGMENTS)
        and are_whole(p)
        and columns_ok(p.x)
    )


def fragments_product(
    p: Product, plan: Plan, kernel: str, numbers: str, at: Layout | None = None,
    given: Left | None = None, then: Left | None = None,
) -> Launch:  # fmt: skip
    """numbers: the template arguments behind the units of a stage. at: of columns that blocks do
    not make. given: where the kernel before left them. then: where the product behind finds its."""
    lying = replace(p, weights=tuple(map(compact_rows, p.weights)))
    more = fast_div(p.k // UNIT) + struct.pack("@i", _EARLY)
    more += next_fragments.place(then) + next_fragments.given(p, given)
    types = f"{cpp_type(p.weights[0].dtype)}, {cpp_bool(plan.whole)}, {plan.units}, {numbers}"
    return tile_launch(lying, plan.tiles, kernel, types, more, at)
