"""Launches mul_mat_tma.cu: 16-bit weights times several columns, on Hopper."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from gguflow.engine.graph import DType

from .columns import (
    GLU,
    KINDS,
    QKV,
    ROWS,
    Layout,
    Product,
    arguments,
    columns_ok,
    layout,
    round_launch,
    rows_ok,
    turns_by,
)
from .compact import EIGHTS
from .launch import CLUSTERS, DeviceInfo, Kernel, Launch, TensorMap, ceil_div, cpp_type

LEAST = 2  # columns
OPTIONS = ("-arch=sm_90a",)  # whose devices alone have such products
TILE_K, TILE_ROW = 64, 128  # of a tile's row, as in tma.cuh: elements, bytes
_PAIRS, _THREADS = 64, 288  # as in mul_mat_tma.cu
_COLUMNS = (16, 32, 64, 128, 192, 256)  # a block may have
_WIDE = 128  # with more of them a block has one group
_FULL = 0.85  # of a block's columns are there, at least, where it counts as full
_GROUPS = (2, 1)
_ENOUGH = 96  # multiprocessors that bring as much as the memory gives
_TYPICAL = 64  # columns, of what tiles are chosen for
# What a byte of columns takes beside one of weights, as they come from the second-level cache; what
# beginning and ending blocks take, adding up a part, and a single column from rows as they are, in
# bytes.
_COLUMNS_SHARE, _TURN, _PART, _PLAIN = 0.05, 18 << 20, 5.9 * 2**20, 2 << 20
_SHORT = 2048  # elements of a part
_STATIC, _ALIGN = 1024, 1024  # bytes of shared memory: left alone; that tiles are aligned to
_MAX_STAGES = 16


@dataclass(frozen=True)
class Tiles:
    """groups: of 64 pairs of rows a block. parts: of k, blocks of a cluster."""

    groups: int
    parts: int


@dataclass(frozen=True)
class _Plan:
    """columns, groups: of a block. shares: of columns."""

    columns: int
    shares: int
    groups: int
    tiles: int
    blocks: int
    stages: int
    shared: int


def tiles_for(p: Product, device: DeviceInfo) -> Tiles:
    """Those that take least time, in bytes of the device's memory. Not by the number of columns, so
    that a column's sums are added in the same order among any others."""
    weights = sum(w.ne[1] * w.nb[1] for w in p.weights)

    def cost(t: Tiles) -> float:
        tiles = p.tiles(_PAIRS * t.groups)
        turns = ceil_div(tiles, device.clusters(t.parts))
        share = max(1.0, _ENOUGH * turns / (tiles * t.parts))
        columns = tiles * _TYPICAL * 2 * p.k
        more = _TURN * turns + _PART * t.parts
        more += 0 if in_units(length_of_parts(p.k, t.parts)) else _PLAIN
        return share * weights + _COLUMNS_SHARE * columns + more

    sizes = [
        s for s in CLUSTERS if p.k >= 2 * s * TILE_K and (s - 1) * length_of_parts(p.k, s) < p.k
    ]
    found = [Tiles(g, s) for g in _GROUPS for s in sizes]
    return min(found or [Tiles(2, 1)], key=cost)


def _plan(p: Product, t: Tiles, device: DeviceInfo) -> _Plan:
    shares = ceil_div(p.m, _COLUMNS[-1])
    columns = next(c for c in _COLUMNS if shares * c >= p.m)
    groups = 1 if columns > _WIDE else t.groups
    tiles = p.tiles(_PAIRS * groups)
    stages, shared = ring_of(2 * _PAIRS * groups, columns, device)
    return _Plan(columns, shares, groups, tiles, tiles * t.parts * shares, stages, shared)


def ring_of(rows: int, columns: int, device: DeviceInfo) -> tuple[int, int]:
    """Stages that there is room for of tiles of so many rows and columns; and the shared memory of
    a block with them."""
    stage, fixed = (rows + columns) * TILE_ROW + 16, _ALIGN + 4 * columns
    stages = min(_MAX_STAGES, (device.shared_per_block - _STATIC - fixed) // stage)
    return stages, fixed + stages * stage


def takes(p: Product, device: DeviceInfo) -> bool:
    t = p.weights[0].dtype
    half = p.heads.head_dim // 2 if p.heads is not None and p.heads.neox else _PAIRS
    return (
        device.arch == "sm_90"
        and p.m >= LEAST
        and not t.is_quantized
        and len({(w.dtype, w.nb[1]) for w in p.weights}) == 1
        and all(rows_ok(w, 16, TILE_K) and _in_pairs(p.kind, w.ne[1]) for w in p.weights)
        and (_PAIRS % half == 0 or half % _PAIRS == 0)
        and columns_ok(p.x)
        and _plan(p, Tiles(2, 1), device).stages > 2
    )


def covers(p: Product, device: DeviceInfo) -> bool:
    """Whether `takes` takes these weights with several columns."""
    columns = replace(p.x, ne=(p.k, _WIDE, *[1] * (len(p.x.ne) - 2)))
    return takes(replace(p, x=columns), device)


def usual_parts(p: Product, device: DeviceInfo) -> int:
    """Of k, that launches here have, with any number of columns; 0: these weights are not taken."""
    return tiles_for(p, device).parts if covers(p, device) else 0


def parts_of(p: Product, device: DeviceInfo) -> int:
    """The same where all kernels have to add by them, so that a column has the same bits among any
    others; 0: there are none, and a sum is one chain."""
    return usual_parts(p, device) if device.equal_bits else 0


def length_of_parts(k: int, parts: int) -> int:
    """Elements of each part of k, of which the last one may have less."""
    return ceil_div(k // TILE_K, parts) * TILE_K


def in_units(length: int) -> bool:
    """Whether parts of so many elements may be read from the compact form: whole units of it, or
    long ones."""
    return length % EIGHTS.weights == 0 or length >= _SHORT


def fills(p: Product) -> bool:
    """Whether blocks with the most columns have hardly any that are not there."""
    return p.m >= _FULL * ceil_div(p.m, _COLUMNS[-1]) * _COLUMNS[-1]


def _in_pairs(kind: int, rows: int) -> bool:
    return kind == GLU or rows % 2 == 0


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return layout(replace(p, heads=None), 1).end


def launches(
    p: Product, device: DeviceInfo, scratch: int, tiles: Tiles | None = None
) -> list[Launch]:
    """The launches of a product that `takes` takes. tiles: others than `tiles_for` chooses."""
    tiles = tiles or tiles_for(p, device)
    plan, t = _plan(p, tiles, device), p.weights[0].dtype
    at = layout(replace(p, heads=None), 1, address=scratch)
    x, scales = (at.x, at.scales) if p.ready is None else (p.ready.address, p.ready.scales)
    maps = rows_maps(p) + (columns_map(x, t, p, plan.columns),)
    args = tma_arguments(p, at, scales, plan.tiles, tiles.parts, plan.stages, plan.shares)
    sizes = f"{plan.columns}, {plan.groups}, {tiles.parts}"
    entry = f"mul_mat_tma<{KINDS[p.kind]}, {cpp_type(t)}, {sizes}>"
    grid, block = (plan.blocks, 1, 1), (_THREADS, 1, 1)
    product = Launch(Kernel("mul_mat_tma.cu", entry, OPTIONS), grid, block, args, plan.shared,
                     dependent=True, maps=maps)  # fmt: skip
    if p.ready is not None:
        return [product]
    return [round_launch(replace(p, heads=None), at, 1, ROWS), product]


def tma_arguments(
    p: Product, at: Layout, scales: int, tiles: int, parts: int, stages: int, shares: int
) -> bytes:
    """`TmaArgs` of tma_pairs.cuh, behind the maps. scales: of the columns."""
    args = arguments(p, replace(at, scales=0), tiles, parts, stages, 0, 0)
    args += struct.pack("@Pi4x", scales if p.rounded == "f16" else 0, shares) + turns_by(p)
    return args + bytes(-len(args) % 64)


def rows_maps(p: Product) -> tuple[TensorMap, ...]:
    """Of the three that a kernel has of weights."""
    maps = [_rows_map(p, i) for i in range(len(p.weights))]
    return (*maps, *[maps[0]] * (3 - len(maps)))


def _rows_map(p: Product, i: int) -> TensorMap:
    """Of weights i: k, pairs before the next heads, first and second row of a pair, heads. Of gate
    and up the rows are neither."""
    w, row = p.weights[i], p.weights[i].nb[1]
    if p.kind == GLU:
        pairs, second, heads, step = w.ne[1], row, 1, row
    elif p.kind == QKV and p.heads is not None and p.heads.neox and p.heads.first + i < 2:
        pairs = p.heads.head_dim // 2
        second, heads, step = pairs * row, w.ne[1] // (2 * pairs), 2 * pairs * row
    else:
        pairs, second, heads, step = 1, row, w.ne[1] // 2, 2 * row
    # Boxes are whole: what lies beyond a matrix comes as zeros, and blocks wait for all bytes.
    inner = _PAIRS if p.kind == GLU else min(pairs, _PAIRS)
    halves = 1 if p.kind == GLU else 2
    return TensorMap(
        w.address, w.dtype.name, (p.k, pairs, halves, heads), (row, second, step),
        (TILE_K, inner, 1, _PAIRS // inner),
    )  # fmt: skip


def columns_map(address: int, t: DType, p: Product, columns: int) -> TensorMap:
    """Of the columns of a product, rounded to t at this address."""
    return TensorMap(address, t.name, (p.k, p.m), (2 * p.k,), (TILE_K, columns))
