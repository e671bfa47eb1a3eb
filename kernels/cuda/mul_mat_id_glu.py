"""Launches the fused gate and up of a layer's experts; where no kernel does both of many pairs, as
products of their own and the activation."""

from __future__ import annotations

from gguflow.engine.graph import F32, Role, Tensor, op_spec

from .elementwise import map_launch
from .expert_columns import Experts, takes
from .expert_vec import FEW
from .glu import FUNCTOR
from .launch import MAX_GRID_YZ, Call, DeviceInfo, Launch, Operand, ceil_div, register
from .mul_mat_id import glu_few_launch, product_bytes, product_launches

OPS = ("mul_mat_id_glu",)


def supports(node: Tensor) -> bool:
    return node.shape[0] * node.shape[1] + node.live_srcs()[0].shape[0] <= MAX_GRID_YZ


def _fused(gate: Operand, up: Operand, x: Operand, n_pairs: int, device: DeviceInfo) -> bool:
    return takes(gate, x, n_pairs, device) and takes(up, x, n_pairs, device)


def _products_at(gate: Operand, x: Operand, ids: Operand, device: DeviceInfo) -> int:
    return ceil_div(product_bytes(gate, x, ids, device), 256) * 256


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    gate, up, x, ids = (Operand.of(t, t.view_offset) for t in node.live_srcs()[:4])
    if ids.size <= FEW:
        return 0
    most = max(_products_at(w, x, ids, device) for w in (gate, up))
    apart = most + 2 * ceil_div(node.nbytes, 256) * 256  # which addresses may decide for
    if _fused(gate, up, x, ids.size, device):
        return max(apart, Experts([gate, up], x, ids).end)
    return apart


def launches(call: Call) -> list[Launch]:
    gate, up, x, ids = (call.src(i) for i in range(4))
    biases, act, p = [call.optional(4), call.optional(5)], call.node.params["act"], call.node.params
    if ids.size <= FEW:
        return [glu_few_launch(call)]
    if _fused(gate, up, x, ids.size, call.device):
        made = Experts([gate, up], x, ids, call.scratch)
        return made.launches(call.dst, biases, call.node.srcs[3], call.device, act, p)
    at = call.scratch + max(_products_at(w, x, ids, call.device) for w in (gate, up))
    dense = Operand.of(Tensor("scratch", F32, call.node.shape, Role.NODE), at)
    halves = dense, dense.shift(ceil_div(call.node.nbytes, 256) * 256)
    values = call.node.srcs[2:4]
    found: list[Launch] = []
    for to, w, bias in zip(halves, (gate, up), biases, strict=True):
        for launch in product_launches(call, to, w, x, ids, bias, values):
            if launch not in found:  # x is rounded already
                found.append(launch)
    spec = op_spec(act)
    params = spec.pack_params({q.name: p[q.name] for q in spec.params})
    return [*found, *map_launch("glu.cu", FUNCTOR[act], call.dst, halves, call.device, params)]


register(OPS, launches, supports=supports, scratch_bytes=scratch_bytes)
