"""Rules for layers whose attention and feed-forward part stand side by side."""

from __future__ import annotations

from gguflow.engine.compile.rules.base import Rewrite, Rule
from gguflow.engine.graph import Tensor


def two_projects_then_add(node: Tensor) -> Rewrite | None:
    """mul_mat_add(w2, x2, mul_mat_add(w1, x1, r)) -> mul_mat_two_add(w1, x1, w2, x2, r); the same
    with biases, of mul_mat_bias_add"""
    inner = node.srcs[-1] if _adds(node) else None
    if inner is None or not _adds(inner):
        return None
    r = inner.srcs[-1]
    if r is None or not r.shape == inner.shape == node.shape:
        return None
    biases = [t.srcs[2] if t.op == "mul_mat_bias_add" else None for t in (inner, node)]
    srcs = (*inner.srcs[:2], *node.srcs[:2], r, *(biases if any(biases) else ()))
    return Rewrite("mul_mat_two_add", srcs, (inner,))


def _adds(t: Tensor) -> bool:
    return t.op in ("mul_mat_add", "mul_mat_bias_add")


RULES: tuple[Rule, ...] = (two_projects_then_add,)
