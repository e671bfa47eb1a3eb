"""Launches mul_mat_columns.cu: quantized and 16-bit weights times many columns, on Hopper."""

from __future__ import annotations

from dataclasses import dataclass

from gguflow.engine.graph import DType

from .columns import (
    TILES,
    Layout,
    Product,
    arguments,
    columns_ok,
    layout,
    round_launch,
    rows_ok,
)
from .launch import DeviceInfo, Kernel, Launch, ceil_div, cpp_type

_SOURCE = "mul_mat_columns.cu"
# Its products exist for this target alone, which the devices of `sm_90` run.
OPTIONS = ("-arch=sm_90a",)
THREADS, _TILE_K = 384, 64  # as in mul_mat_columns.cu
_COLUMNS = (8, 16, 32, 64)  # a block may have, or 128
_PER_SM = 233472  # bytes of shared memory, of which a block takes one kilobyte beside its own
_MAX_STAGES = 12
_MASKS = 16  # bytes


@dataclass(frozen=True)
class Tile:
    """What a block does: so many columns, and twice `depth` times 64 weight rows."""

    columns: int
    depth: int

    @property
    def rows(self) -> int:
        return 128 * self.depth

    @property
    def blocks(self) -> int:
        """Of a multiprocessor."""
        return 2 if self.depth == 1 and self.columns <= 64 else 1


# Of more than 64 columns; and the one that leaves fewer multiprocessors without a block.
WIDE, NARROW = Tile(128, 2), Tile(64, 1)


def tile_for(p: Product, device: DeviceInfo) -> Tile:
    if p.m <= NARROW.columns:
        return Tile(next(c for c in _COLUMNS if c >= p.m), 1)
    narrow = parts_of_k(p, device) == 1 and cycles(p, NARROW, device) < cycles(p, WIDE, device)
    return NARROW if narrow else WIDE


def cycles(p: Product, tile: Tile, device: DeviceInfo) -> float:
    """What the blocks of a product take, as measured on an H200 with Q4_0. Those that have a
    multiprocessor to themselves come wave by wave; of two on one the other one goes on."""
    parts = parts_of_k(p, device)
    blocks, steps = p.tiles(tile.rows // 2) * ceil_div(p.m, tile.columns) * parts, p.k / 64 / parts
    if tile.blocks > 1:
        return 1500 * steps * max(1, blocks / (tile.blocks * device.sm_count))
    return 1900 * steps * ceil_div(blocks, device.sm_count)


def _chunk(t: DType) -> int:
    """Elements of a row that a stage holds."""
    return 256 if t.is_quantized else 128


def _stride(t: DType) -> int:
    """Bytes from row to row of a stage: `STRIDE` of columns_weights.cuh."""
    nbytes = _chunk(t) // t.block * t.nbytes
    if not t.is_quantized:
        return nbytes
    pieces = nbytes // 16 if nbytes % 16 == 0 else ceil_div(nbytes + 15, 16)
    return (pieces | 1) * 16


def stages(t: DType, tile: Tile, device: DeviceInfo) -> tuple[int, int, int]:
    """(stages of weights, stages of columns, bytes of shared memory); no stages: it does not fit.

    Columns come from the second-level cache and need few stages; weights take the rest.
    """
    fixed = 8 * tile.rows + _MASKS
    room = min(_PER_SM // tile.blocks, device.shared_per_block + 1024) - 2048 - fixed
    columns, weights = tile.columns * _TILE_K * 2 + 16, tile.rows * _stride(t) + 16  # and barriers
    fits = [(min(_MAX_STAGES, (room - x * columns) // weights), x) for x in (3, 4, 6, 8)]
    w_stages, x_stages = max(fits, key=lambda f: (min(f[0], 4), f[1]))
    if w_stages < 2:
        return 0, 0, 0
    return w_stages, x_stages, 1024 + x_stages * columns + w_stages * weights + fixed


def parts_of_k(p: Product, device: DeviceInfo) -> int:
    """Parts of k. They depend on the weights alone, so that bits do not depend on the columns."""
    blocks = ceil_div(p.n, 256)
    return max(1, min(p.k // 256, 16, device.sm_count // blocks))


def takes(p: Product, device: DeviceInfo, tile: Tile | None = None) -> bool:
    t = p.weights[0].dtype
    aligned = 16 if not t.is_quantized or _chunk(t) // t.block * t.nbytes % 16 == 0 else 2
    return (
        device.arch == "sm_90"
        and (p.m > 1 or p.chunk)
        and all(rows_ok(w, aligned, _chunk(t)) for w in p.weights)
        and columns_ok(p.x)
        and stages(t, tile or tile_for(p, device), device)[0] > 0
    )


def layout_of(p: Product, tile: Tile, device: DeviceInfo, scratch: int = 0) -> Layout:
    """Room for the columns and for the sums of parts of k."""
    splits = parts_of_k(p, device)
    blocks = p.tiles(tile.rows // 2) * ceil_div(p.m, tile.columns)
    sums = 4 * splits * blocks * tile.rows * tile.columns if splits > 1 else 0
    return layout(p, tile.columns, sums, scratch)


def scratch_bytes(p: Product, device: DeviceInfo, tile: Tile | None = None) -> int:
    return layout_of(p, tile or tile_for(p, device), device).end


def launches(
    p: Product, device: DeviceInfo, scratch: int, tile: Tile | None = None
) -> list[Launch]:
    """The launches of a product that `takes` takes."""
    tile, t = tile or tile_for(p, device), p.weights[0].dtype
    at = layout_of(p, tile, device, scratch)
    splits, groups = parts_of_k(p, device), ceil_div(p.m, tile.columns)
    w_stages, x_stages, shared = stages(t, tile, device)
    blocks = p.tiles(tile.rows // 2)
    args = arguments(p, at, blocks, splits, w_stages, x_stages, 0)
    kernel = Kernel(
        _SOURCE, f"mul_mat_columns<{cpp_type(t)}, {tile.columns}, {tile.depth}>", OPTIONS
    )
    grid, block = (blocks, splits, groups), (THREADS, 1, 1)
    made = [
        round_launch(p, at, tile.columns, TILES),
        Launch(kernel, grid, block, args, shared, dependent=True),
    ]
    if splits > 1:
        kernel = Kernel(_SOURCE, f"sum_columns<{tile.columns}, {tile.depth}>", OPTIONS)
        grid = (2 * tile.depth * tile.columns // 8, blocks, groups)
        made.append(Launch(kernel, grid, (128, 1, 1), args, dependent=True))
    return made
