"""Launches mul_mat_fragments_few.cu: 2 to 16 columns times quantized weights that lie as fragments
too, with the bits of mul_mat_columns.cu."""

from __future__ import annotations

from . import tile_fragments
from .columns import FRAGMENTS, Product, layout, round_launch
from .launch import DeviceInfo, Launch
from .tile_fragments import Plan, fragments_product, plan_of

MOST = 16
_COLUMNS = (2, 4, 8, 16)  # that lie together
_BLOCKS = (1, 2, 4, 8)  # that share the parts of a tile: a cluster


def _plan(p: Product, device: DeviceInfo) -> Plan | None:
    return plan_of(p, device, next(c for c in _COLUMNS if c >= p.m), _BLOCKS)


def takes(p: Product, device: DeviceInfo) -> bool:
    return 1 < p.m <= MOST and tile_fragments.takes(p, device) and _plan(p, device) is not None


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return layout(p, MOST).end


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launches of a product that `takes` takes."""
    plan = _plan(p, device)
    assert plan is not None
    at = layout(p, plan.columns, 0, scratch)
    numbers = f"{plan.columns}, {plan.tiles.blocks}"
    return [
        round_launch(p, at, plan.columns, FRAGMENTS),
        fragments_product(p, plan, "mul_mat_fragments_few", numbers, at),
    ]
