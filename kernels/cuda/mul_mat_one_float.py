"""Launches mul_mat_one_float.cu: one column times 16-bit weights, with the bits that it has among
any others where that is asked for (`DeviceInfo.equal_bits`), and from long rows in their compact
form. For others mul_mat_vec.cu is faster."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from . import mul_mat_tma
from .columns import Layout, Product, arguments, columns_ok, rows_ok
from .compact import EIGHTS, compact_rows, is_compact, row_bytes
from .elementwise import cpp_bool
from .launch import DeviceInfo, Kernel, Launch, ceil_div, cpp_type, fast_div, places_of
from .one_column import TAKEN

_WARPS, _PAIRS = 16, 8  # of a block; of a tile's rows
# Elements of a stage: as many as leave a warp so many stages, or all that it goes through.
_CHUNKS, _ENOUGH = (256, 128), 3
_MAX_STAGES = 8
_SHORT = 2048  # elements of a part
_LARGE = 4096  # rows, and elements of each
_SQUARES = 256  # elements whose squares are added first
_NO_ROPE = bytes(40)
_KINDS = ("PLAIN", "GLU", "QKV")  # as numbered in columns.py


@dataclass(frozen=True)
class _Plan:
    """How a product is divided. places: of what lies in shared memory, in the order of
    `OneFloatArgs`.

    parts: of k, see mul_mat_tma.parts_of, and length: elements of each. chunk: elements of a stage,
    compact: in their compact form.
    tiles: that a block has at once. needed, stages: that a warp goes through, and that it has.
    """

    parts: int
    length: int
    chunk: int
    compact: bool
    grid: int
    tiles: int
    needed: int
    stages: int
    places: tuple[int, ...]
    shared: int


def _plan(p: Product, device: DeviceInfo) -> _Plan:
    parts = mul_mat_tma.parts_of(p, replace(device, equal_bits=True))
    plans = [_plan_of(p, device, parts, chunk) for chunk in _CHUNKS]
    return next((plan for plan in plans if plan.stages >= min(_ENOUGH, plan.needed)), plans[-1])


def _plan_of(p: Product, device: DeviceInfo, parts: int, chunk: int) -> _Plan:
    rest, length = _has_rest(device), p.k
    if parts > 1 and rest:  # parts of whole units, of which none is empty
        length = ceil_div(p.k // EIGHTS.weights, parts) * EIGHTS.weights
        parts = ceil_div(p.k, length)
    elif parts > 1:
        length = mul_mat_tma.length_of_parts(p.k, parts)
    n_parts = max(1, parts)
    compact = _is_compact(p, length)
    x_bytes = 2 * p.k
    if rest:  # as `rest_at` of float_column.cuh
        x_bytes += ceil_div(2 * p.k, 128) * 128 + 64
    at_once, free = _WARPS // n_parts, device.sm_count - TAKEN
    grid = min(device.sm_count, p.tiles(_PAIRS))
    # As in `blocks_of` of one_column.py, of short rows.
    if compact and len(p.weights) == 1 and p.k <= _LARGE and p.tiles(_PAIRS) <= free * at_once:
        grid = min(grid, free)
    most = ceil_div(p.tiles(_PAIRS), grid)  # tiles of a block
    rounds = ceil_div(most, at_once)
    tiles = ceil_div(most, rounds)
    sizes = (
        8 * _MAX_STAGES * _WARPS,  # barriers
        4 * p.heads.head_dim if p.heads else 0,
        4 * (ceil_div(p.k, _SQUARES) + _WARPS),
        2 * 4 * 2 * _PAIRS * _WARPS,
        x_bytes,
    )
    places = places_of(sizes, 128)
    # Of a tile's rows; as they are they lie a little apart.
    rows = 2 * _PAIRS * (row_bytes(chunk) if compact else 2 * chunk + 32)
    stage = tiles * n_parts * rows  # of all warps
    room = max(0, device.shared_per_block - places[-1]) // stage
    needed = rounds * ceil_div(length, chunk)
    stages = min(_MAX_STAGES, room, needed)
    return _Plan(parts, length, chunk, compact, grid, tiles, needed, stages,
                 tuple(places[1:]), places[-1] + stages * stage)  # fmt: skip


def _has_rest(device: DeviceInfo) -> bool:
    """Whether what rounding takes off the column is multiplied too: where it need not have the bits
    of others."""
    return not device.equal_bits


def _is_compact(p: Product, length: int) -> bool:
    """Whether the kernel reads the compact form: of tiles whose pairs are of the same eights, and
    of parts of whole units or long ones."""
    if length % EIGHTS.weights and length < _SHORT:
        return False
    whole = all(pairs % _PAIRS == 0 for pairs in p.pairs)
    turned = p.heads is not None and p.heads.neox and p.heads.first < 2
    halves = p.heads.head_dim // 2 if p.heads and turned else 0
    return whole and halves % _PAIRS == 0 and is_compact(p.weights, EIGHTS)


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
        and (plan := _plan(p, device)).stages > 0
        and (device.equal_bits or plan.compact)
    )


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return 0


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launch of a product that `takes` takes."""
    plan, heads, rest = _plan(p, device), p.heads, _has_rest(device)
    if plan.compact:
        p = replace(p, weights=tuple(compact_rows(w) for w in p.weights))
    body = arguments(p, Layout(), p.tiles(_PAIRS), 1, plan.stages, 0, 0)
    body += struct.pack(
        "@4P", p.x.address, p.norm.address if p.norm else 0, heads.pos.address if heads else 0,
        heads.factors.address if heads and heads.factors else 0,
    ) + (heads.rope if heads else _NO_ROPE)  # fmt: skip
    share = divmod(p.tiles(_PAIRS), plan.grid)
    body += struct.pack("@f3i", p.eps, plan.tiles, *share) + fast_div(max(1, plan.parts))
    body += struct.pack("@7i", plan.length, plan.parts > 0 and not rest, *plan.places)
    body += bytes(-len(body) % 8)
    kind, dtype, norm = _KINDS[p.kind], cpp_type(p.weights[0].dtype), cpp_bool(p.norm is not None)
    stored = f"compact<{dtype}>" if plan.compact else dtype
    entry = f"mul_mat_one_float<{kind}, {stored}, {norm}, {plan.chunk}, {cpp_bool(rest)}>"
    grid, block = (plan.grid, 1, 1), (32 * _WARPS, 1, 1)
    kernel = Kernel("mul_mat_one_float.cu", entry)
    return [Launch(kernel, grid, block, body, plan.shared, dependent=True)]
