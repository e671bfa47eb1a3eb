"""What comes before attention, as one op: norm, three products, norms of heads, rotation, rows
written."""

from __future__ import annotations

from collections.abc import Sequence

from gguflow.engine.compile.rules.base import Rewrite, Rule, fused_node, made_by, whole
from gguflow.engine.dataclass import dataclass, replace
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


@dataclass(frozen=True)
class _Turned:
    """Heads [m, n, hd], and what is done to them: a norm, if there is one, and a rotation.

    inner: the nodes that do it.
    """

    heads: Tensor
    rope: Tensor
    inner: tuple[Tensor, ...]
    norm: Tensor | None = None
    eps: float = 0.0


def _turned(t: Tensor | None) -> _Turned | None:
    rope = made_by(whole(t), "rope")
    heads = rope.srcs[0] if rope is not None else None
    if rope is None or heads is None:
        return None
    norm, weight, eps = made_by(whole(heads), "rms_norm_mul"), None, 0.0
    inner: tuple[Tensor, ...] = (rope,)
    if norm is not None and norm.shape == rope.shape:
        heads, weight, eps, inner = norm.srcs[0], norm.srcs[1], norm.params["eps"], (norm, rope)
    copy = made_by(whole(heads), "cont")
    if copy is not None and copy.shape == rope.shape and copy.srcs[0] is not None:
        heads, inner = copy.srcs[0], (copy, *inner)
    return None if heads is None else _Turned(heads, rope, inner, weight, eps)


def without_last(srcs: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Without the operands at the end that are not there."""
    n = max(i + 1 for i, s in enumerate(srcs) if s is not None)
    return tuple(srcs[:n])


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
    made = fused_node(q_rope, Rewrite("norm_qkv_rope", without_last(srcs), (), params))
    if made is None:
        return None
    inner = (*q.inner, *k.inner, *v.inner, k_set, v_set)
    if norm is not None:
        inner = (norm, *inner)
    return _attending(node, made, states, inner)


def heads_before_attention(node: Tensor) -> Rewrite | None:
    """attention(rope(q), set_rows(keys, rope(k)), set_rows(values, v)) -> attention(qkv_heads(q, k,
    v), keys, values); rotated heads may have norms, queries lie apart from each other"""
    if node.op != "attention":
        return None
    k_set, v_set = (made_by(whole(s), "set_rows") for s in node.srcs[1:3])
    if k_set is None or v_set is None:
        return None
    q, k = _turned(node.srcs[0]), _turned(k_set.srcs[1])
    if q is None or k is None:
        return None
    pos, rows = q.rope.srcs[1], k_set.srcs[2]
    if (
        whole(k.rope.srcs[1]) is not whole(pos)
        or whole(v_set.srcs[2]) is not whole(rows)
        or dict(q.rope.params) != dict(k.rope.params)
        or q.rope.srcs[2:] != k.rope.srcs[2:]
        or (q.norm and k.norm and q.eps != k.eps)
    ):
        return None
    states = k_set.srcs[0], v_set.srcs[0]
    factors = q.rope.srcs[2] if len(q.rope.srcs) > 2 else None
    srcs = (q.heads, k.heads, _one_head(v_set.srcs[1]), pos, rows, *states, factors, *(None,) * 3,
            q.norm, k.norm)  # fmt: skip
    params = {"head_eps": q.eps or k.eps, **q.rope.params}
    made = fused_node(q.rope, Rewrite("qkv_heads", without_last(srcs), (), params))
    if made is None:
        return None
    inner = (*q.inner, *k.inner, k_set, v_set)
    return _attending(node, made, states, inner)


def _one_head(v: Tensor | None) -> Tensor | None:
    """Values [m, n] as [m, 1, n]."""
    if v is None or len(v.shape) != 2:
        return None
    (m, n), (row, element) = v.shape, v.strides
    return replace(v, shape=(m, 1, n), strides=(row, row, element), role=Role.VIEW, op=None,
                   params={}, srcs=(v,), view_of=v.owner)  # fmt: skip


def _attending(
    node: Tensor, made: Tensor, states: tuple[Tensor | None, ...], inner: tuple[Tensor, ...]
) -> Rewrite:
    """The attention of queries that were just made over what was written to the states."""
    views = (
        replace(t, srcs=(s,)) if t is not None and t.role is Role.VIEW else s
        for t, s in zip(node.srcs[1:3], states, strict=True)
    )
    return Rewrite("attention", (made, *views, *node.srcs[3:]), inner, dict(node.params), (made,))


RULES: tuple[Rule, ...] = (
    before_attention,
    before_attention_without_norm,
    heads_before_attention,
)
