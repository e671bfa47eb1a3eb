"""Launches the experts' second products with the sum over a token's experts: one kernel for few
tokens, or the products into scratch memory and their sum."""

from __future__ import annotations

from gguflow.engine.graph import F32, Role, Tensor

from . import expert_vec
from .launch import MAX_GRID_YZ, Call, DeviceInfo, Launch, Operand, ceil_div, register
from .moe_sum import sum_launch
from .mul_mat_id import product_bytes, product_launches

OPS = ("mul_mat_id_sum",)


def supports(node: Tensor) -> bool:
    w, _, ids = node.live_srcs()[:3]
    return ids.size + w.shape[0] <= MAX_GRID_YZ


def _products(ids: Operand, w: Operand, address: int = 0) -> Operand:
    """The products of all pairs, [m, u, n] in scratch memory."""
    (used, m), n = ids.ne[:2], w.ne[1]
    return Operand.of(Tensor("products", F32, (m, used, n), Role.NODE), address)


def _products_at(w: Operand, x: Operand, ids: Operand, device: DeviceInfo) -> int:
    return ceil_div(product_bytes(w, x, ids, device), 256) * 256


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    w, x, ids = (Operand.of(t, t.view_offset) for t in node.live_srcs()[:3])
    return _products_at(w, x, ids, device) + 4 * _products(ids, w).size


def launches(call: Call) -> list[Launch]:
    w, x, ids, shares = (call.src(i) for i in range(4))
    if expert_vec.takes_sum(w, x, ids, call.device):
        return [expert_vec.sum_launch(call)]
    to = _products(ids, w, call.scratch + _products_at(w, x, ids, call.device))
    values = call.node.srcs[1:3]
    return [
        *product_launches(call, to, w, x, ids, call.optional(4), values),
        sum_launch(call.dst, to, shares, call.optional(5)),
    ]


register(OPS, launches, supports=supports, scratch_bytes=scratch_bytes)
