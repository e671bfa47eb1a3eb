"""Launches mul_mat_two.cu: two products of one column each, added to a residual."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

from gguflow.engine.graph import Tensor

from . import attention
from .launch import (
    Call,
    DeviceInfo,
    Kernel,
    Launch,
    Operand,
    ceil_div,
    cpp_type,
    register,
    register_joint,
)
from .mul_mat_vec import LEAST_SHARED, ROWS, STATIC, column_bytes, kind_of, stage_bytes, takes
from .one_column import WARPS

OPS = ("mul_mat_two_add",)
# More would leave attention, whose end is waited for, no room beside them on a multiprocessor.
MAX_STAGES = 3


def _plan(
    weights: tuple[Operand, Operand], columns: tuple[Operand, Operand], device: DeviceInfo
) -> tuple[int, int, int, int]:
    """(blocks, warps, stages, bytes of shared memory); no warps where there is no room."""
    pairs = ceil_div(weights[0].ne[1], ROWS)
    blocks = min(device.sm_count, pairs)
    most = ceil_div(pairs, blocks)
    kind, stage = kind_of(weights[0]), stage_bytes(weights) + 8  # and its barrier
    room = device.shared_per_block - STATIC - sum(column_bytes(kind, x.ne[0]) for x in columns)
    for warps in WARPS:
        fixed = 8 * (most + 2 * (most + warps)) + 16
        stages = min(MAX_STAGES, max(0, room - fixed) // (warps * stage))
        if stages >= 2:
            used = device.shared_per_block - STATIC - room + fixed + stages * warps * stage
            return blocks, warps, stages, used
    return 0, 0, 0, 0


def _pair(operands: list[Operand | None], first: int) -> tuple[Operand, Operand]:
    a, b = operands[first], operands[first + 2]
    assert a is not None and b is not None
    return a, b


def supports(node: Tensor) -> bool:
    device = DeviceInfo(shared_per_block=LEAST_SHARED)
    operands = [None if s is None else Operand.of(s, s.view_offset) for s in node.srcs]
    weights, columns, dst = _pair(operands, 0), _pair(operands, 1), Operand.of(node, 0)
    return (
        columns[0].ne[1] == 1
        and kind_of(weights[0]) == kind_of(weights[1])
        and all(takes(dst, [w], x, device) for w, x in zip(weights, columns, strict=True))
        and all(o is None or o.nb[0] == 4 for o in operands[4:])
        and _plan(weights, columns, device)[1] > 0
    )


def _never(node: Tensor) -> bool:
    return False


def launches(call: Call, first: int = 0, early: bool = False) -> list[Launch]:
    """first: the product that is made first, 0 or 1. early: whether its column is there when
    the kernel begins."""
    order = first, 1 - first
    weights = call.src(2 * order[0]), call.src(2 * order[1])
    columns = call.src(2 * order[0] + 1), call.src(2 * order[1] + 1)
    biases = [call.optional(5 + i) for i in order]
    blocks, warps, stages, shared = _plan(weights, columns, call.device)
    args = struct.pack(
        "@8P2q6i", *(w.address for w in weights), *(x.address for x in columns),
        call.src(4).address, *(0 if b is None else b.address for b in biases), call.dst.address,
        *(w.nb[1] for w in weights), *(x.ne[0] for x in columns), weights[0].ne[1],
        ceil_div(weights[0].ne[1], ROWS), stages, early,
    )  # fmt: skip
    types = ", ".join(cpp_type(w.dtype) for w in weights)
    kernel = Kernel("mul_mat_two.cu", f"mul_mat_two<{types}>")
    args += bytes(-len(args) % 16)
    return [Launch(kernel, (blocks, 1, 1), (32 * warps, 1, 1), args, shared, dependent=True)]


def joint(calls: Sequence[Call]) -> list[list[Launch]] | None:
    """Attention to a single token and both products behind it: the one that does not read what
    attention makes runs beside it."""
    if len(calls) < 2 or calls[1].node.op != OPS[0]:
        return None
    node, columns = calls[0].node, [s and s.owner for s in calls[1].node.srcs[1:4:2]]
    made = list(attention.launches(calls[0]))
    single = len(made) == 1 and made[0].kernel.entry.startswith("attention_decode<")
    if not single or columns.count(node) != 1:
        return None
    entry = f"{made[0].kernel.entry[:-1]}, true>"
    late = replace(made[0], kernel=replace(made[0].kernel, entry=entry), roomy=None)
    return [[late], launches(calls[1], 1 - columns.index(node), early=True)]


register(OPS, launches, supports=supports, supports_equal=_never)
register_joint(attention.OPS, joint)
