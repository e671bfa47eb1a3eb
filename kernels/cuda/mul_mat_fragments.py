"""Launches mul_mat_fragments.cu: one column times quantized weights that lie as fragments too, with
the bits of mul_mat_columns.cu."""

from __future__ import annotations

from . import tile_fragments
from .columns import Product
from .elementwise import cpp_bool
from .launch import DeviceInfo, Launch
from .tile_fragments import Plan, fragments_product, plan_of


def _plan(p: Product, device: DeviceInfo) -> Plan | None:
    return plan_of(p, device, 1, (1,))


def takes(p: Product, device: DeviceInfo) -> bool:
    return p.m == 1 and tile_fragments.takes(p, device) and _plan(p, device) is not None


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return 0


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launch of a product that `takes` takes."""
    plan = _plan(p, device)
    assert plan is not None
    return [fragments_product(p, plan, "mul_mat_fragments", cpp_bool(p.norm is not None))]
