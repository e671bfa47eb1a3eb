"""Launches mul_mat_chain.cu: 16-bit weights times 1 to 16 columns, on devices with bulk copies, of
which equal bits are asked (`DeviceInfo.equal_bits`)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from . import mul_mat_tma
from .columns import (
    FRAGMENTS_IN_ORDER,
    Layout,
    Product,
    arguments,
    columns_ok,
    layout,
    round_launch,
    rows_ok,
)
from .elementwise import cpp_bool
from .launch import DeviceInfo, Kernel, Launch, ceil_div, cpp_type

MOST = 16  # columns
_ROWS, _PAIRS = 16, 8  # of a tile, as in mul_mat_chain.cu
# Elements of a stage. More where k has parts, each of which ends with a short one, and where that
# leaves enough stages.
_CHUNK, _LONG_CHUNK, _ENOUGH = 256, 512, 3
_SQUARES = 256  # elements whose squares are added first
_COLUMN_WARPS, _BRINGERS = 16, 2  # that make a single column, that bring weights
_MOST_WARPS = 4  # tiles that a block has at once: their chains keep up with memory
_X_STAGES = 4
_MAX_STAGES = 28  # of all tiles; a warp makes their barriers
_NO_ROPE = bytes(40)
_KINDS = ("PLAIN", "GLU", "QKV")  # as numbered in columns.py


@dataclass(frozen=True)
class _Plan:
    """How a product is divided. places: of what lies in shared memory, in the order of ChainArgs.

    parts: of k, see mul_mat_tma.parts_of. chunk: elements of a stage. warps: tiles that a block has
    at once; rounds: how often it takes some.
    """

    parts: int
    chunk: int
    grid: int
    warps: int
    rounds: int
    x_stages: int
    stages: int
    places: tuple[int, ...]
    shared: int


def _plan(p: Product, device: DeviceInfo) -> _Plan:
    parts = mul_mat_tma.parts_of(p, device) if p.m == 1 else 0
    if parts > 1:
        long = _plan_of(p, device, parts, _LONG_CHUNK)
        if long.stages >= _ENOUGH:
            return long
    return _plan_of(p, device, parts, _CHUNK)


def _plan_of(p: Product, device: DeviceInfo, parts: int, chunk: int) -> _Plan:
    tiles, one = p.tiles(_PAIRS), p.m == 1
    grid = min(device.sm_count, tiles)
    most = ceil_div(tiles, grid)
    rounds = ceil_div(most, _MOST_WARPS)
    warps, x_stages = ceil_div(most, rounds), 0 if one else _X_STAGES
    groups, head_dim = ceil_div(p.m, 8), p.heads.head_dim if p.heads else 0
    sizes = (
        16 * (_MAX_STAGES + x_stages),  # barriers
        8 * _ROWS * warps,
        4 * head_dim if one else 0,
        4 * (ceil_div(p.k, _SQUARES) + _COLUMN_WARPS) if one else 0,
        2 * p.k if one else x_stages * groups * 16 * chunk,
    )
    places = [0]
    for size in sizes:
        places.append(places[-1] + ceil_div(size, 128) * 128)
    # All there is, so that no multiprocessor has two blocks and another none.
    stage = _ROWS * (2 * chunk + 32)
    stages = min(_MAX_STAGES, max(0, device.shared_per_block - places[-1]) // stage) // warps
    return _Plan(parts, chunk, grid, warps, rounds, x_stages, stages, tuple(places[1:]),
                 places[-1] + stages * warps * stage)  # fmt: skip


def takes(p: Product, device: DeviceInfo) -> bool:
    types = {w.dtype for w in p.weights}
    return (
        device.is_hopper
        and device.equal_bits
        and p.m <= MOST
        and len(types) == 1
        and not p.weights[0].dtype.is_quantized
        and all(rows_ok(w, 16, 32) for w in p.weights)
        and columns_ok(p.x)
        and _plan(p, device).stages >= 2
    )


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return 0 if p.m == 1 else layout(p, 8 * ceil_div(p.m, 8)).end


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launches of a product that `takes` takes."""
    plan, one = _plan(p, device), p.m == 1
    columns, heads = 8 * ceil_div(p.m, 8), p.heads
    at = Layout() if one else layout(p, columns, address=scratch)
    body = arguments(p, at, p.tiles(_PAIRS), 1, plan.stages, plan.x_stages, 0)
    body += struct.pack(
        "@4P", p.x.address, p.norm.address if p.norm else 0, heads.pos.address if heads else 0,
        heads.factors.address if heads and heads.factors else 0,
    ) + (heads.rope if heads else _NO_ROPE)  # fmt: skip
    share = divmod(p.tiles(_PAIRS), plan.grid)
    part = mul_mat_tma.length_of_parts(p.k, plan.parts) if plan.parts else 0
    body += struct.pack("@f10i", p.eps, plan.warps, plan.rounds, *share, part, *plan.places)
    kind, dtype = _KINDS[p.kind], cpp_type(p.weights[0].dtype)
    entry = f"mul_mat_chain<{kind}, {dtype}, {plan.chunk}, {columns // 8}, {cpp_bool(one)}>"
    warps = (_COLUMN_WARPS if one else plan.warps + 1) + _BRINGERS
    kernel = Kernel("mul_mat_chain.cu", entry)
    made = [] if one else [round_launch(p, at, columns, FRAGMENTS_IN_ORDER)]
    grid, block = (plan.grid, 1, 1), (32 * warps, 1, 1)
    return [*made, Launch(kernel, grid, block, body, plan.shared, dependent=True)]
