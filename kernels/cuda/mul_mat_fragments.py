"""Launches mul_mat_fragments.cu: one column times quantized weights that lie as fragments too, with
the bits of mul_mat_columns.cu."""

from __future__ import annotations

from . import mul_mat_columns, tile_fragments
from .columns import Product
from .elementwise import cpp_bool
from .fragments import UNIT, fragment_row_bytes
from .launch import DeviceInfo, Launch
from .tile_column import PAIRS, WARPS
from .tile_fragments import UNITS, Plan, fragments_product, plan_of

# Bytes that all warps ask for before the column, which comes behind them, where they are soon
# through with a chain (docs/LOG.md).
_FIRST, _SHORT = 76 << 10, 4


def _plan(p: Product, device: DeviceInfo) -> Plan | None:
    short = p.k // UNIT <= _SHORT * mul_mat_columns.parts_of_k(p, device)
    two = WARPS * 2 * PAIRS * fragment_row_bytes(p.weights[0].dtype, 2 * UNIT)
    return plan_of(p, device, 1, (1,), (1,) if short and two > _FIRST else UNITS)


def takes(p: Product, device: DeviceInfo) -> bool:
    return (
        p.m == 1
        and p.chunk  # int8's order is faster where bits need not be those of several
        and tile_fragments.takes(p, device)
        and _plan(p, device) is not None
    )


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return 0


def launches(p: Product, device: DeviceInfo, scratch: int) -> list[Launch]:
    """The launch of a product that `takes` takes."""
    plan = _plan(p, device)
    assert plan is not None
    return [fragments_product(p, plan, "mul_mat_fragments", cpp_bool(p.norm is not None))]
