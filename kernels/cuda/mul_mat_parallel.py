"""A LayerNorm, the first half of a feed-forward layer and queries, keys and values as one launch of
mul_mat_vec.cu: what a layer whose attention stands beside its feed-forward part begins with.

Of one column. `engine/compile/join.py` brings the three ops together.
"""

from __future__ import annotations

from collections.abc import Sequence

from gguflow.engine.graph import Role

from . import launch, mul_mat_vec
from .launch import Call, Launch, Operand, may_run_at_once, register_joint

CALLS = ("layer_norm", "mul_mat_gelu", "norm_qkv_rope")


def joint(calls: Sequence[Call]) -> tuple[int, list[Launch]] | None:
    """A LayerNorm and both products that read it, if mul_mat_vec.cu takes them together."""
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
    return len(CALLS), [mul_mat_vec.heads_few(heads, x, w, eps, kind, [up], **beside)]


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
