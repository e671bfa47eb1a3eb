"""What comes before attention, as one op: norm, three products, rotation, rows written."""

from __future__ import annotations

from gguflow.engine.compile.rules.base import Rewrite, Rule, fused_node, made_by, whole
from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Role, Tensor


def _rotated(t: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """(rope, mul_mat) where t is a rotated product."""
    rope = made_by(whole(t), "rope")
    product = made_by(whole(rope.srcs[0]), "mul_mat") if rope is not None else None
    return (rope, product) if rope is not None and product is not None else None


def before_attention(node: Tensor) -> Rewrite | None:
    """attention(rope(wq h), set_rows(keys, rope(wk h)), set_rows(values, wv h)), h = rms_norm_mul
    -> attention(norm_qkv_rope, keys, values)"""
    if node.op != "attention":
        return None
    q, (k_rows, v_rows) = _rotated(node.srcs[0]), (whole(s) for s in node.srcs[1:3])
    k_set, v_set = made_by(k_rows, "set_rows"), made_by(v_rows, "set_rows")
    k = _rotated(k_set.srcs[1]) if k_set is not None else None
    v = made_by(whole(v_set.srcs[1]), "mul_mat") if v_set is not None else None
    if q is None or k is None or v is None or k_set is None or v_set is None:
        return None
    (q_rope, q_mm), (k_rope, k_mm) = q, k
    norm = made_by(whole(q_mm.srcs[1]), "rms_norm_mul")
    pos, rows = q_rope.srcs[1], k_set.srcs[2]
    if (
        norm is None
        or any(whole(m.srcs[1]) is not norm for m in (k_mm, v))
        or whole(k_rope.srcs[1]) is not whole(pos)
        or whole(v_set.srcs[2]) is not whole(rows)
        or dict(q_rope.params) != dict(k_rope.params)
        or q_rope.srcs[2:] != k_rope.srcs[2:]
    ):
        return None
    states = k_set.srcs[0], v_set.srcs[0]
    params = {**norm.params, "head_dim": q_rope.shape[2], **q_rope.params}
    srcs = (*norm.srcs, q_mm.srcs[0], k_mm.srcs[0], v.srcs[0], pos, rows, *states,
            *q_rope.srcs[2:])  # fmt: skip
    made = fused_node(q_rope, Rewrite("norm_qkv_rope", srcs, (), params))
    if made is None:
        return None
    views = (
        replace(t, srcs=(s,)) if t is not None and t.role is Role.VIEW else s
        for t, s in zip(node.srcs[1:3], states, strict=True)
    )
    inner = (norm, q_mm, k_mm, v, q_rope, k_rope, k_set, v_set)
    return Rewrite("attention", (made, *views, *node.srcs[3:]), inner, dict(node.params), (made,))


RULES: tuple[Rule, ...] = (before_attention,)
