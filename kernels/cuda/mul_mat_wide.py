"""Launches mul_mat_wide.cu: 16-bit weights times 17 to 128 columns, on Hopper."""

from __future__ import annotations

from dataclasses import dataclass

from .columns import (
    KINDS,
    TILES_IN_ORDER,
    Product,
    arguments,
    columns_ok,
    layout,
    round_launch,
    rows_ok,
)
from .launch import DeviceInfo, Kernel, Launch, ceil_div, cpp_type

MOST = 128  # columns
# Its products exist for this target alone, which the devices of `sm_90` run.
_OPTIONS = ("-arch=sm_90a",)
_CLUSTER, _TILE_BYTES = 4, 128  # as in mul_mat_wide.cu: blocks; a row of a tile of 64 elements
_ROWS = (16, 32, 48, 64, 80, 96, 112)  # a block may have
_BLOCKS = 2  # of a multiprocessor
_X_STAGES = (6, 4, 3)
_LEAST_STAGES, _MAX_STAGES = 3, 12


@dataclass(frozen=True)
class _Plan:
    """rows: of a block. groups: of 64 columns."""

    rows: int
    groups: int
    blocks: int
    w_stages: int
    x_stages: int
    shared: int


def _rows(p: Product, device: DeviceInfo) -> int:
    """The most rows that let all blocks run at once, or such that few wait for others.

    A block needs time for its rows and, less, for its columns.
    """
    # Clusters are of neighbours, of which some of a multiple of sixteen are none.
    at_once = max(1, device.sm_count // 16 * 16)

    def cost(rows: int) -> float:
        return ceil_div(ceil_div(sum(p.pairs), rows // 2), at_once) * (rows + p.m / 4)

    return min(_ROWS, key=cost)


def _plan(p: Product, device: DeviceInfo) -> _Plan | None:
    rows, groups = _rows(p, device), ceil_div(p.m, 64)
    blocks = ceil_div(ceil_div(sum(p.pairs), rows // 2), _CLUSTER) * _CLUSTER
    w_stage, x_stage = rows * _TILE_BYTES * (2 if rows <= 64 else 1), 64 * groups * _TILE_BYTES
    fixed = 1024 + 8 * rows
    room = device.shared_among(_BLOCKS) - fixed
    for x_stages in _X_STAGES:
        left = room - x_stages * (x_stage + 16)
        w_stages = min(_MAX_STAGES, left // (w_stage + 16))
        if w_stages >= _LEAST_STAGES:
            shared = fixed + x_stages * (x_stage + 16) + w_stages * (w_stage + 16)
            return _Plan(rows, groups, blocks, w_stages, x_stages, shared)
    return None


def _bringers(plan: _Plan) -> int:
    """Threads that bring weights, as in mul_mat_wide.cu."""
    return 128 if plan.groups == 1 else 64 if plan.rows <= 48 else 32


def takes(p: Product, device: DeviceInfo) -> bool:
    t = p.weights[0].dtype
    return (
        device.arch == "sm_90"
        and 1 < p.m <= MOST
        and not t.is_quantized
        and len({w.dtype for w in p.weights}) == 1
        and all(rows_ok(w, 16, 128) for w in p.weights)
        and columns_ok(p.x)
        and _plan(p, device) is not None
    )


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return layout(p, 64 * ceil_div(p.m, 64)).end


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launches of a product that `takes` takes."""
    plan, t = _plan(p, device), p.weights[0].dtype
    assert plan is not None
    at = layout(p, 64 * plan.groups, address=scratch)
    args = arguments(p, at, plan.blocks, 1, plan.w_stages, plan.x_stages, 0)
    entry = f"mul_mat_wide<{KINDS[p.kind]}, {cpp_type(t)}, {plan.rows}, {plan.groups}>"
    kernel = Kernel("mul_mat_wide.cu", entry, _OPTIONS)
    grid, block = (plan.blocks, 1, 1), (128 * plan.groups + _bringers(plan) + 32, 1, 1)
    return [
        round_launch(p, at, 64 * plan.groups, TILES_IN_ORDER),
        Launch(kernel, grid, block, args, plan.shared, dependent=True),
    ]
