"""A LayerNorm, the first half of a feed-forward layer and queries, keys and values as one launch,
what a layer whose attention stands beside its feed-forward part begins with: of
mul_mat_parallel.cu, or of mul_mat_vec.cu for types that the former is not known to be faster for.

Of one column. `engine/compile/join.py` brings the three ops together.
"""

from __future__ import annotations

from collections.abc import Sequence

from gguflow.engine.graph import Role

from . import launch, mul_mat_vec
from .launch import (
    Call,
    DeviceInfo,
    Kernel,
    Launch,
    Operand,
    ceil_div,
    cpp_type,
    may_run_at_once,
    register_joint,
)
from .mul_mat_vec import ROWS, STATIC, column_bytes, kind_of, stage_bytes

CALLS = ("layer_norm", "mul_mat_gelu", "norm_qkv_rope")
EVEN = ("q4_0",)  # types of mul_mat_parallel.cu
# Of a block; fewer where shared memory is short. With more its stages would leave it no room beside
# a block of mul_mat_two.cu.
WARPS = (8, 4)
MAX_STAGES = 4  # more on their way delay the column, which queues behind them


def joint(calls: Sequence[Call]) -> list[list[Launch]] | None:
    """A LayerNorm and both products that read it, where one kernel takes them together."""
    if tuple(c.node.op for c in calls[: len(CALLS)]) != CALLS or not _reads_it(calls):
        return None
    norm, act, heads = calls[: len(CALLS)]
    x, w, up = norm.src(0), norm.src(1), act.src(0)
    bias = norm.optional(2)
    weights = [*(heads.src(i) for i in (2, 3, 4)), up]
    device = norm.device
    if device.equal_bits or not all(_by_vec(c) for c in (act, heads)):
        return None
    alike = (up.dtype, up.nb[1]) == (weights[0].dtype, weights[0].nb[1])
    aligned = all(o is None or (o.nb[0] == 4 and o.address % 16 == 0)
                  for o in (x, w, bias, norm.dst))  # fmt: skip
    room = mul_mat_vec.plan(weights, x.ne[0], 1, heads.dst.ne[0], device)[0]
    if not (alike and aligned and room and may_run_at_once(calls[: len(CALLS)])):
        return None
    kind = "PARALLEL_ERF" if act.node.params["erf"] else "PARALLEL"
    eps = norm.node.params["eps"]
    beside: dict[str, Operand | None] = {"norm_bias": bias, "normed": norm.dst, "act": act.dst}
    blocks, warps, stages, shared = _plan(weights, x.ne[0], heads.dst.ne[0], device)
    even = len({w.nb[1] for w in weights}) == 1 and all(w.dtype.name in EVEN for w in weights)
    if not (even and warps):
        return [[mul_mat_vec.heads_few(heads, x, w, eps, kind, [up], **beside)], [], []]
    args = mul_mat_vec.heads_arguments(heads, x, w, eps, weights, stages, **beside)
    kernel = Kernel("mul_mat_parallel.cu", f"mul_mat_parallel<{kind}, {cpp_type(up.dtype)}>")
    block = (32 * warps, 1, 1)
    return [[Launch(kernel, (blocks, 1, 1), block, args, shared, dependent=True)], [], []]


def _plan(
    weights: Sequence[Operand], k: int, head_dim: int, device: DeviceInfo
) -> tuple[int, int, int, int]:
    """(blocks, warps, stages, bytes of shared memory); no warps where there is no room."""
    pairs = sum(ceil_div(w.ne[1], ROWS) for w in weights)
    blocks = max(1, min(device.sm_count, ceil_div(pairs, 4)))
    kind, stage = kind_of(weights[0]), stage_bytes(weights) + 8  # and its barrier
    for warps in WARPS:
        words = head_dim // 2 + 3 * (ceil_div(pairs, blocks) + warps)  # of 8 bytes
        fixed = 8 * words + 16 + column_bytes(kind, k)
        room = device.shared_per_block - STATIC - fixed
        stages = min(MAX_STAGES, max(0, room) // (warps * stage))
        if stages >= 2:
            return blocks, warps, stages, fixed + stages * warps * stage
    return 0, 0, 0, 0


def _reads_it(calls: Sequence[Call]) -> bool:
    """Whether both products are of the normed row, with nothing else around them."""
    norm, act, heads = (c.node for c in calls[: len(CALLS)])
    w = norm.srcs[1] if len(norm.srcs) > 1 else None
    constant = all(s is None or s.owner.role is Role.WEIGHT for s in norm.srcs[1:])
    return (
        norm.shape == (1, norm.shape[-1])
        and w is not None
        and constant
        and act.srcs[1] is heads.srcs[0] is norm
        and not any(act.srcs[2:])
        and heads.srcs[1] is None
    )


def _by_vec(call: Call) -> bool:
    """Whether one launch of mul_mat_vec.cu is all that an op takes."""
    made = launch.launches(call)
    return (
        len(made) == 1 and isinstance(made[0], Launch) and made[0].kernel.source == "mul_mat_vec.cu"
    )


register_joint(CALLS[:1], joint)
