"""Attention, and gate and up, that leave their results rounded for the product of weights that lie
as fragments behind them (next_fragments.cuh), which then needs no launch that rounds its columns:
2 to 16 rows, as a single column is rounded by the product itself, which takes no longer."""

from __future__ import annotations

from collections.abc import Sequence

from . import attention, mul_mat_batch, mul_mat_fragments_few
from .columns import GLU, Product, is_all
from .launch import Call, Launch, register_joint
from .next_fragments import BLOCK, MOST, left_for

_GATED = ("mul_mat_swiglu", "norm_mul_mat_swiglu")


def _product(call: Call) -> Product | None:
    """What mul_mat_fragments_few.cu multiplies, where that is all of an op."""
    if not any(s is not None and s.compact for s in call.srcs):
        return None
    return mul_mat_batch.product_of(call, ["columns_round.cu", "mul_mat_fragments_few.cu"])


def _behind(call: Call, first: Call, at: int) -> Product | None:
    """The product of a call that may find its columns left: all results of the first, rows along
    dimension `at`."""
    p = _product(call) if call.rounded is None else None
    if p is None or not mul_mat_fragments_few.takes_left(p):
        return None
    return p if is_all(p.x, first.dst, at) else None


def _attended(first: Call, behind: Call) -> list[list[Launch]] | None:
    if not attention.leaves_next(first):
        return None
    p = _behind(behind, first, 2)
    if p is None:
        return None
    left = left_for(p, p.k // BLOCK, first.scratch)
    made = mul_mat_fragments_few.launches(p, behind.device, behind.scratch, left)
    return [attention.launches(first, floats=left), made]


def _gated(first: Call, behind: Call) -> list[list[Launch]] | None:
    p, then = _product(first), _behind(behind, first, 1)
    if p is None or p.kind != GLU or then is None:
        return None
    way, device, scratch = mul_mat_fragments_few, first.device, first.scratch
    left = way.left_by(p, then, device, scratch)
    return [
        way.launches(p, device, scratch, then=left),
        way.launches(then, device, scratch, left),
    ]


def joint(calls: Sequence[Call]) -> list[list[Launch]] | None:
    """Attention, or gate and up, and the product behind it that reads what it makes."""
    if len(calls) < 2 or not calls[0].device.has_fragments:
        return None
    if not 1 < calls[0].node.shape[0] <= MOST:
        return None
    make = _attended if calls[0].node.op in attention.OPS else _gated
    return make(calls[0], calls[1])


register_joint((*attention.OPS, *_GATED), joint)
