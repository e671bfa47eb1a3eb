"""Launches mul_mat_few.cu: quantized weights times 2 to 16 columns, on devices with bulk copies.
With `DeviceInfo.equal_bits` one column too, of what mul_mat_one.cu does not take."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import gcd

from gguflow.engine.graph import DType

from . import next_columns
from .columns import PLAIN, Layout, Product, arguments, columns_ok, rows_ok
from .columns_int8 import (
    CHUNK,
    Records,
    known,
    record_bytes,
    records,
    records_launch,
    room,
    sums_of,
)
from .elementwise import cpp_bool
from .launch import DeviceInfo, Kernel, Launch, ceil_div, cpp_type, places_of
from .next_columns import Next

MOST = 16  # columns
_LEAVES = 8  # columns up to which results are left rounded for the product behind
_WARPS, _ROWS, _PAIRS, _BATCH, _SLOTS, _QUADS = 16, 16, 8, 8, 4, 2  # as in the .cu
_THREADS = {2: 640, 4: 768}  # by the warps that add: one or two for four columns each
_STATIC = 256  # bytes of shared memory that are left alone
_MAX_STAGES = 8
_RING = 112 << 10  # bytes on their way: more delay the columns, which queue behind them
_BYTE_MASKS = (0xF0F0F0F0, 0x0F0F0F0F)


def _chunk_bytes(t: DType) -> int:
    return CHUNK // t.block * t.nbytes


def _row_bytes(t: DType, k: int) -> int:
    """Of a row in a stage: an odd number of 16 bytes, against conflicts."""
    nbytes = min(k // CHUNK, _WARPS) * _chunk_bytes(t)
    return ((ceil_div(nbytes, 16) + (0 if _chunk_bytes(t) % 16 == 0 else 1)) | 1) * 16


@dataclass(frozen=True)
class _Plan:
    """How a product is divided.

    groups: of eight columns. phases: slices of 16 chunks of k. stride: bytes between rows of a
    stage. places: of what lies in shared memory, in the order of `FewArgs`.
    """

    groups: int
    phases: int
    stride: int
    stages: int
    places: tuple[int, ...]
    shared: int


def _types(p: Product) -> tuple[DType, DType]:
    """Of the weights, and of the values among them, which may be another."""
    return p.weights[0].dtype, p.weights[-1].dtype


def _sums(p: Product) -> int:
    return max(map(sums_of, _types(p)))


def _plan(p: Product, device: DeviceInfo, leaves: bool = False) -> _Plan:
    """leaves: whether columns are left for the product behind."""
    groups, phases = ceil_div(p.m, 8), ceil_div(p.k, CHUNK * _WARPS)
    sizes = (
        8 * (2 * _MAX_STAGES + 2 * _SLOTS),
        _SLOTS * _WARPS * groups * 512,
        _WARPS * groups * (record_bytes(_sums(p)) - record_bytes(-1)),
        _BATCH * _QUADS * groups * 512 if phases > 1 else 0,
        2 * _QUADS * groups * 256 if leaves else 0,
    )
    places = places_of(sizes, 128)
    stride = max(_row_bytes(t, p.k) for t in _types(p))
    free, wanted = device.shared_per_block - _STATIC - places[-1], round(_RING / (_ROWS * stride))
    stages = max(0, min(_MAX_STAGES, max(2, wanted), free // (_ROWS * stride)))
    shared = places[-1] + stages * _ROWS * stride
    return _Plan(groups, phases, stride, stages, tuple(places[1:]), shared)


def takes(p: Product, device: DeviceInfo) -> bool:
    return (
        all(map(known, _types(p)))
        and device.is_hopper
        and (1 if device.equal_bits else 2) <= p.m <= MOST
        and all(rows_ok(w, gcd(_chunk_bytes(w.dtype), 16), CHUNK) for w in p.weights)
        and columns_ok(p.x)
        and _plan(p, device).stages > 1
    )


def leaves_next(p: Product, device: DeviceInfo) -> bool:
    """Whether a product that `takes` takes may leave its results rounded, 32 rows together, without
    some block having more tiles than it has otherwise. Of more than eight columns adding takes
    longest, and rounding behind it longer than a launch."""
    tiles, blocks = p.tiles(_PAIRS), device.sm_count
    return (
        p.kind == PLAIN
        and p.m <= _LEAVES
        and p.n % CHUNK == 0
        and 2 * ceil_div(tiles // 2, blocks) <= ceil_div(tiles, blocks)
        and _plan(p, device, True).stages > 1
    )


def wanted(p: Product, scratch: int) -> Records:
    """The records that a product that `takes` takes reads."""
    return records(p, _sums(p), scratch)


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    behind = room(p.m, p.n) if leaves_next(p, device) else 0
    return wanted(p, 0).end + behind


def launches(
    p: Product,
    device: DeviceInfo,
    scratch: int,
    given: Records | None = None,
    then: Next | None = None,
) -> list[Launch]:
    """The launches of a product that `takes` takes. given: where its columns are rounded already.
    then: the product behind, whose columns are to be left."""
    plan, at = _plan(p, device, then is not None), given or wanted(p, scratch)
    tiles = p.tiles(_PAIRS)
    body = arguments(p, Layout(x=at.x, turns=at.turns), tiles, plan.phases, plan.stages, 0,
                     plan.stride)  # fmt: skip
    body += struct.pack(
        "@P2If6i4x", at.squares if p.norm else 0, *_BYTE_MASKS, p.eps, p.weights[-1].nb[1],
        *plan.places,
    )  # fmt: skip
    body += next_columns.arguments(then)
    body += bytes(-len(body) % 16)
    types = ", ".join(map(cpp_type, _types(p)))
    # There warps can give each other registers.
    options = ("-arch=sm_90a",) if device.arch == "sm_90" else ()
    adders = 4 if options and p.m > 4 else 2
    numbers = f"{plan.groups}, {adders}, {cpp_bool(then is not None)}"
    kernel = Kernel("mul_mat_few.cu", f"mul_mat_few<{types}, {numbers}>", options)
    grid = (min(device.sm_count, tiles if then is None else tiles // 2), 1, 1)
    product = Launch(kernel, grid, (_THREADS[adders], 1, 1), body, plan.shared, dependent=True)
    return [product] if given else [records_launch(p, at), product]
