"""Launches mul_mat_one_float.cu: one column times 16-bit weights, with the bits that it has among
any others where that is asked for (`DeviceInfo.equal_bits`), and from long rows in their compact
form. For others mul_mat_vec.cu is faster."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from . import mul_mat_tma
from .columns import Product, columns_ok, rows_ok
from .compact import EIGHTS, compact_rows, is_compact, row_bytes
from .elementwise import cpp_bool
from .launch import DeviceInfo, Launch, ceil_div, cpp_type
from .one_column import TAKEN
from .tile_column import PAIRS, WARPS, Tiles, are_whole, tile_launch, tiles_of

# Elements of a stage: as many as leave a warp so many stages, or all that it goes through.
_CHUNKS, _ENOUGH = (256, 128), 3
_LARGE = 4096  # rows, and elements of each


@dataclass(frozen=True)
class _Plan:
    """How a product is divided. parts: of k, see mul_mat_tma.parts_of, at most one a warp, and
    length: elements of each. at_once: tiles that a block has at once. chunk: elements of a stage,
    compact: in their compact form."""

    parts: int
    at_once: int
    length: int
    chunk: int
    compact: bool
    tiles: Tiles


def _plan(p: Product, device: DeviceInfo) -> _Plan:
    parts = mul_mat_tma.parts_of(p, replace(device, equal_bits=True))
    plans = [_plan_of(p, device, parts, chunk) for chunk in _CHUNKS]
    return next((x for x in plans if x.tiles.has_stages(_ENOUGH)), plans[-1])


def _plan_of(p: Product, device: DeviceInfo, parts: int, chunk: int) -> _Plan:
    rest, length = _has_rest(device), p.k
    if parts > 1 and rest:  # parts of whole units, of which none is empty
        length = ceil_div(p.k // EIGHTS.weights, parts) * EIGHTS.weights
        parts = ceil_div(p.k, length)
    elif parts > 1:
        length = mul_mat_tma.length_of_parts(p.k, parts)
    n_parts = max(1, parts)
    compact = _is_compact(p, length)
    x_bytes = ceil_div(2 * p.k, 128) * 128
    if rest:  # as `rest_at` of float_column.cuh
        x_bytes += x_bytes + 64
    x_bytes += 32 + 2 * chunk  # zeros
    free, grid = device.sm_count - TAKEN, min(device.sm_count, p.tiles(PAIRS))
    # As in `blocks_of` of one_column.py, of short rows.
    at_once = free * (WARPS // n_parts)
    if compact and len(p.weights) == 1 and p.k <= _LARGE and p.tiles(PAIRS) <= at_once:
        grid = min(grid, free)
    # As they are they lie a little apart.
    row = row_bytes(p.weights[0].dtype, chunk) if compact else 2 * chunk + 32
    most = ceil_div(p.tiles(PAIRS), grid)  # of a block
    rounds = ceil_div(most, WARPS // n_parts)
    tiles = ceil_div(most, rounds)
    plan = tiles_of(
        p, device, n_parts, grid, x_bytes, 2 * 2 * PAIRS * WARPS, row, tiles * n_parts,
        rounds * ceil_div(length, chunk),
    )  # fmt: skip
    return _Plan(parts, tiles, length, chunk, compact, plan)


def _has_rest(device: DeviceInfo) -> bool:
    """Whether what rounding takes off the column is multiplied too: where it need not have the bits
    of others."""
    return not device.equal_bits


def _is_compact(p: Product, length: int) -> bool:
    """Whether the kernel reads the compact form: of tiles whose pairs are of the same eights."""
    return mul_mat_tma.in_units(length) and are_whole(p) and is_compact(p.weights, EIGHTS)


def _is_large(p: Product) -> bool:
    """Of those that need not have the bits of other columns the ones that are faster here than in
    mul_mat_vec.cu, whose columns are made sooner."""
    return p.heads is None and min(p.n, p.k) >= _LARGE and is_compact(p.weights, EIGHTS)


def takes(p: Product, device: DeviceInfo) -> bool:
    return (
        device.is_hopper
        and (device.equal_bits or _is_large(p))
        and p.m == 1
        and len({w.dtype for w in p.weights}) == 1
        and not p.weights[0].dtype.is_quantized
        and all(rows_ok(w, 16, 32) for w in p.weights)
        and columns_ok(p.x)
        and (plan := _plan(p, device)).tiles.stages > 0
        and (device.equal_bits or plan.compact)
    )


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return 0


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launch of a product that `takes` takes."""
    plan, rest = _plan(p, device), _has_rest(device)
    if plan.compact:
        p = replace(p, weights=tuple(map(compact_rows, p.weights)))
    dtype = cpp_type(p.weights[0].dtype)
    stored = f"compact<{dtype}>" if plan.compact else dtype
    types = f"{stored}, {cpp_bool(p.norm is not None)}, {plan.chunk}, {cpp_bool(rest)}"
    more = struct.pack("@3i", plan.at_once, plan.length, plan.parts > 0 and not rest) + bytes(4)
    return [tile_launch(p, plan.tiles, "mul_mat_one_float", types, more)]
