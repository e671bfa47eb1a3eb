"""Launches mul_mat_stream.cu: 16-bit weights times 2 to 16 columns, on devices with bulk copies, of
which no equal bits are asked beyond these."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .columns import FRAGMENTS, Product, arguments, columns_ok, layout, round_launch, rows_ok
from .elementwise import cpp_bool
from .float_parts import PARTS, ROUNDS, blocks_of, bounds_of, most_blocks_of, slices_of
from .launch import DeviceInfo, Kernel, Launch, ceil_div, cpp_type

MOST = 16  # columns
_THREADS, _ROWS, _PAIRS, _BATCH = 640, 16, 8, 8  # as in mul_mat_stream.cu
_BARRIERS = 256  # bytes
_STATIC = 256  # bytes of shared memory that are left alone
_MAX_STAGES = 12


@dataclass(frozen=True)
class _Plan:
    """How a product is divided; all but `groups` depends on the shape of the weights alone.

    splits: parts of k, one after the other. parts: stages that a part of a row takes; blocks: of 32
    elements that a warp has of a stage; full: each all of them or none. groups: of eight columns.
    stride: bytes between rows of a stage.
    """

    splits: int
    parts: int
    blocks: int
    full: bool
    groups: int
    stride: int
    stages: int
    shared: int


def _plan(p: Product, device: DeviceInfo) -> _Plan:
    blocks = blocks_of(p.k)
    nbytes = 64 * min(most_blocks_of(p.k), PARTS * blocks)
    stride = nbytes + (64 if nbytes % 128 == 0 else 0)
    full = all((b - a) % blocks == 0 for a, b in pairwise(bounds_of(p.k)))
    groups = ceil_div(p.m, 8)
    fixed = _BARRIERS + (2 * PARTS + _BATCH) * groups * 512 + 128
    stage = _ROWS * stride
    stages = min(_MAX_STAGES, (device.shared_per_block - _STATIC - fixed) // stage)
    shared = fixed + stages * stage
    return _Plan(slices_of(p.k), ROUNDS, blocks, full, groups, stride, stages, shared)


def takes(p: Product, device: DeviceInfo) -> bool:
    t = p.weights[0].dtype
    return (
        device.is_hopper
        and 2 <= p.m <= MOST
        and not t.is_quantized
        and all(rows_ok(w, 16, 32) for w in p.weights)
        and columns_ok(p.x)
        and _plan(p, device).stages >= 2
    )  # fmt: skip


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return layout(p, 8 * ceil_div(p.m, 8)).end


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launches of a product that `takes` takes."""
    plan, t = _plan(p, device), p.weights[0].dtype
    columns, tiles = 8 * plan.groups, p.tiles(_PAIRS)
    at = layout(p, columns, address=scratch)
    args = arguments(p, at, tiles, plan.splits, plan.stages, 0, plan.stride)
    sizes = f"{plan.groups}, {plan.parts}, {plan.blocks}, {cpp_bool(plan.full)}"
    # There warps can give each other registers.
    options = ("-arch=sm_90a",) if device.arch == "sm_90" else ()
    kernel = Kernel("mul_mat_stream.cu", f"mul_mat_stream<{cpp_type(t)}, {sizes}>", options)
    grid = (min(device.sm_count, tiles), 1, 1)
    return [
        round_launch(p, at, columns, FRAGMENTS),
        Launch(kernel, grid, (_THREADS, 1, 1), args, plan.shared, dependent=True),
    ]
