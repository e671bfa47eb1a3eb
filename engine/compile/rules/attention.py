"""What comes before attention, as one op: norm, three products, norms of heads, rotation, rows
written."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gguflow.engine.compile.rules.base import Rewrite, Rule, fused_node, made_by, whole
from gguflow.engine.graph import Role, Tensor


@dataclass(frozen=True)
class _Made:
    """How queries, keys or values are made: a product, with what follows it.

    inner: the nodes that do it, the product first.
    """

    weight: Tensor | None
    h: Tensor | None
    inner: tuple[Tensor, ...]
    bias: Tensor | None = None
    norm: Tensor | None = None
    eps: float = 0.0


def _product(t: Tensor | None) -> _Made | None:
    """Where t is a product, or one with a bias."""
    t = whole(t)
    if t is None or t.op not in ("mul_mat", "mul_mat_add"):
        return None
    w, h, bias = (*t.srcs, None)[:3]
    if bias is not None and bias.shape != t.shape[-1:]:
        return None
    return _Made(w, h, (t,), bias)


def _heads(t: Tensor | None) -> _Made | None:
    """Where t is such a product that is rotated, its heads normed before that or not."""
    rope = made_by(whole(t), "rope")
    heads = rope.srcs[0] if rope is not None else None
    norm = made_by(whole(heads), "rms_norm_mul")
    made = _product(norm.srcs[0] if norm is not None else heads)
    if made is None or rope is None:
        return None
    if norm is None:
        return replace(made, inner=(*made.inner, rope))
    if norm.shape != rope.shape:
        return None
    inner = (*made.inner, norm, rope)
    return replace(made, inner=inner, norm=norm.srcs[1], eps=norm.params["eps"])


def before_attention(node: Tensor) -> Rewrite | None:
    """attention(rope(wq h), set_rows(keys, rope(wk h)), set_rows(values, wv h)), h = rms_norm_mul
    -> attention(norm_qkv_rope, keys, values); products may have biases, rotated heads norms"""
    return _before_attention(node, True)


def before_attention_without_norm(node: Tensor) -> Rewrite | None:
    """The same where h has other readers too, or is not the result of that norm."""
    return _before_attention(node, False)


def _before_attention(node: Tensor, normed: bool) -> Rewrite | None:
    if node.op != "attention":
        return None
    k_set, v_set = (made_by(whole(s), "set_rows") for s in node.srcs[1:3])
    if k_set is None or v_set is None:
        return None
    q, k, v = _heads(node.srcs[0]), _heads(k_set.srcs[1]), _product(v_set.srcs[1])
    if q is None or k is None or v is None:
        return None
    q_rope, k_rope = q.inner[-1], k.inner[-1]
    norm = made_by(whole(q.h), "rms_norm_mul") if normed else None
    pos, rows = q_rope.srcs[1], k_set.srcs[2]
    if (
        (normed and norm is None)
        or any(whole(m.h) is not whole(q.h) for m in (k, v))
        or whole(k_rope.srcs[1]) is not whole(pos)
        or whole(v_set.srcs[2]) is not whole(rows)
        or dict(q_rope.params) != dict(k_rope.params)
        or q_rope.srcs[2:] != k_rope.srcs[2:]
        or (q.norm and k.norm and q.eps != k.eps)
    ):
        return None
    states = k_set.srcs[0], v_set.srcs[0]
    params = {"head_eps": q.eps or k.eps, "head_dim": q_rope.shape[2], **q_rope.params}
    x_and_norm: tuple[Tensor | None, ...] = (q.h, None)
    if norm is not None:
        x_and_norm = norm.srcs
        params |= norm.params
    factors = q_rope.srcs[2] if len(q_rope.srcs) > 2 else None
    srcs = [*x_and_norm, q.weight, k.weight, v.weight, pos, rows, *states, factors,
            q.bias, k.bias, v.bias, q.norm, k.norm]  # fmt: skip
    while srcs[-1] is None:
        srcs.pop()
    made = fused_node(q_rope, Rewrite("norm_qkv_rope", tuple(srcs), (), params))
    if made is None:
        return None
    views = (
        replace(t, srcs=(s,)) if t is not None and t.role is Role.VIEW else s
        for t, s in zip(node.srcs[1:3], states, strict=True)
    )
    inner = (*q.inner, *k.inner, *v.inner, k_set, v_set)
    if norm is not None:
        inner = (norm, *inner)
    return Rewrite("attention", (made, *views, *node.srcs[3:]), inner, dict(node.params), (made,))


RULES: tuple[Rule, ...] = (before_attention, before_attention_without_norm)
