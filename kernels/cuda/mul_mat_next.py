"""Attention and products of a few columns that leave their results rounded to int8 for the product
behind them (next_columns.cuh), which then needs no launch that rounds its columns."""

from __future__ import annotations

from collections.abc import Sequence

from . import attention, mul_mat_batch, mul_mat_few
from .columns import Product, is_all
from .columns_int8 import Records, room
from .launch import Call, Launch, register_joint
from .next_columns import Next

_FIRST = (*attention.OPS, "mul_mat", "mul_mat_add")
_MOST = 3  # calls


def _few(call: Call) -> Product | None:
    """What mul_mat_few.cu multiplies, where that is all of an op."""
    if not any(s.dtype.is_quantized for s in call.node.live_srcs()):
        return None
    return mul_mat_batch.product_of(call, ["columns_int8.cu", "mul_mat_few.cu"])


def _next(call: Call, p: Product | None, behind: Call | None, begin: int) -> Next | None:
    """What an op leaves for the one behind it. p: its product; None: it is attention. begin: of
    scratch memory that is neither's."""
    if behind is None or behind.rounded is not None:
        return None
    if not (attention.leaves_next(call) if p is None else mul_mat_few.leaves_next(p, call.device)):
        return None
    found = _few(behind)
    if found is None or not is_all(found.x, call.dst, 2 if p is None else 1):
        return None
    if p is None and (found.norm or found.heads):  # squares and turns are a product's to leave
        return None
    at = mul_mat_few.wanted(found, begin)
    return Next(found, at) if at.end - at.x <= room(found.m, found.k) else None


def joint(calls: Sequence[Call]) -> list[list[Launch]] | None:
    """Attention or a product, and the product behind it that reads what it makes; behind attention
    one more."""
    first = calls[0]
    attends = first.node.op in attention.OPS
    mine = calls[: _MOST if attends else _MOST - 1]
    if len(mine) < 2 or not 1 < first.node.shape[0] <= mul_mat_few.MOST:
        return None
    p = None if attends else _few(first)
    if p is None and not attends:
        return None
    end = first.scratch if p is None else mul_mat_few.wanted(p, first.scratch).end
    made: list[list[Launch]] = []
    given: Records | None = None  # where a call's columns are
    for call, behind in zip(mine, [*mine[1:], None], strict=True):
        then = _next(call, p, behind, end)
        if p is not None:
            made.append(mul_mat_few.launches(p, call.device, call.scratch, given, then))
        elif then is not None:
            made.append(attention.launches(call, then.at))
        if then is None:
            break
        p, given, end = then.product, then.at, then.at.end
    return made if len(made) > 1 else None


register_joint(_FIRST, joint)
