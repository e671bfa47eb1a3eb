"""Launches mul_mat_fragments_few.cu: 2 to 16 columns times quantized weights that lie as fragments
too, with the bits of mul_mat_columns.cu."""

from __future__ import annotations

from . import tile_fragments
from .columns import FRAGMENTS, GLU, PLAIN, Layout, Product, layout, round_launch
from .launch import DeviceInfo, Launch
from .next_fragments import MOST, Left, columns_of, left_for
from .next_fragments import room as room_left
from .tile_fragments import UNITS, Plan, fragments_product, plan_of

_BLOCKS = (1, 2, 4, 8)  # that share the parts of a tile: a cluster


def _plan(p: Product, device: DeviceInfo) -> Plan | None:
    return plan_of(p, device, columns_of(p.m), _BLOCKS, UNITS)


def takes(p: Product, device: DeviceInfo) -> bool:
    return 1 < p.m <= MOST and tile_fragments.takes(p, device) and _plan(p, device) is not None


def takes_left(p: Product) -> bool:
    """Whether the kernel before may leave the columns of a product that `takes` takes rounded: with
    a norm they follow from all of a column."""
    return p.kind == PLAIN and p.norm is None


def scratch_bytes(p: Product, device: DeviceInfo) -> int:
    return layout(p, MOST).end


def room(p: Product, device: DeviceInfo) -> int:
    """Bytes of scratch memory for a product that `takes` may take, and for its results where they
    may be left for the product behind."""
    if not (device.has_fragments and p.weights[0].dtype.is_quantized and 1 < p.m <= MOST):
        return 0
    left = room_left(p.m, p.pairs[0], device) if p.kind == GLU else 0
    return scratch_bytes(p, device) + left


def left_by(p: Product, then: Product, device: DeviceInfo, scratch: int) -> Left:
    """Where a product leaves the columns of the one behind: after its own, a piece a block."""
    plan = _plan(p, device)
    assert plan is not None
    pieces = plan.tiles.groups * plan.tiles.blocks
    return left_for(then, pieces, layout(p, plan.columns, 0, scratch).end)


def launches(
    p: Product,
    device: DeviceInfo,
    scratch: int,
    given: Left | None = None,
    then: Left | None = None,
) -> list[Launch]:
    """The launches of a product that `takes` takes. given: where its columns are left, if it
    `takes_left`. then: where the product behind finds its own."""
    plan = _plan(p, device)
    assert plan is not None
    at = layout(p, plan.columns, 0, scratch) if given is None else Layout(x=given.x)
    numbers = f"{plan.columns}, {plan.tiles.blocks}"
    made = fragments_product(p, plan, "mul_mat_fragments_few", numbers, at, given, then)
    return [made] if given else [round_launch(p, at, plan.columns, FRAGMENTS), made]
