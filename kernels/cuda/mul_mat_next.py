"""Attention and products of a few columns that leave their results rounded to int8 for the product
behind them (next_columns.cuh), which then needs no launch that rounds its columns."""

from __future__ import annotations

from collections.abc import Sequence

from . import attention, mul_mat_batch, mul_mat_few, next_columns
from .columns import Product
from .launch import Call, Launch, Operand, launches, register_joint
from .next_columns import Next

_FIRST = (*attention.OPS, "mul_mat", "mul_mat_add")
_MOST = 3  # calls


def _few(call: Call) -> Product | None:
    """What mul_mat_few.cu multiplies, where that is all of an op."""
    made = [m.kernel.source if isinstance(m, Launch) else "" for m in launches(call)]
    if made != ["columns_int8.cu", "mul_mat_few.cu"]:
        return None
    [[product]] = mul_mat_batch.products_of(call)
    return product


def _is_all(x: Operand, dst: Operand, at: int) -> bool:
    """Whether x is the rows of a result along its dimension `at`, of all the elements before it."""
    n, dense = 1, True
    for length, step in zip(dst.ne[:at], dst.nb[:at], strict=True):
        dense &= length == 1 or step == 4 * n
        n *= length
    return dense and (x.address, x.ne[0], x.rows, x.nb[1]) == (
        dst.address, n, dst.ne[at], dst.nb[at]
    )  # fmt: skip


def _next(call: Call, behind: Call, begin: int = 0) -> Next | None:
    """What an op leaves for the one behind it. begin: where in memory, if its own columns are not
    rounded by itself."""
    p = _few(behind) if behind.rounded is None else None
    if p is None:
        return None
    if call.node.op in attention.OPS:
        if p.norm or p.heads or not _is_all(p.x, call.dst, 2) or not attention.leaves_next(call):
            return None
    else:
        mine = _few(call)
        if mine is None or not _is_all(p.x, call.dst, 1):
            return None
        if not mul_mat_few.leaves_next(mine, call.device):
            return None
        begin = begin or mul_mat_few.wanted(mine, call.scratch).end
    at = mul_mat_few.wanted(p, begin or call.scratch)
    return Next(p, at) if at.end - at.x <= next_columns.room(p.m, p.k) else None


def joint(calls: Sequence[Call]) -> list[list[Launch]] | None:
    """Attention or a product, and the product behind it that reads what it makes; behind attention
    one more."""
    first, *others = calls[: _MOST if calls[0].node.op in attention.OPS else _MOST - 1]
    if not others or not 1 < first.node.shape[0] <= mul_mat_few.MOST:
        return None
    given = _next(first, others[0])
    if given is None:
        return None
    if first.node.op in attention.OPS:
        made = [attention.launches(first, given.at)]
    else:
        mine = _few(first)
        assert mine is not None
        made = [mul_mat_few.launches(mine, first.device, first.scratch, then=given)]
    for call, behind in zip(others, [*others[1:], None], strict=True):
        then = _next(call, behind, given.at.end) if behind else None
        args = given.product, call.device, call.scratch, given.at, then
        made.append(mul_mat_few.launches(*args))
        if then is None:
            break
        given = then
    return made


register_joint(_FIRST, joint)
