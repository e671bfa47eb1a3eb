"""Attention over the KV cache: grouped queries, rotary or other positions, windows, caps."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gguflow.engine.graph import Tensor

from ..base import WeightSpec
from ..batch import CacheLayer, Rows
from ..hparams import HParams
from .linear import linear, linear_weights
from .norm import RMS_NORM, Norm
from .site import Site


def attention(
    at: Site, h: Tensor, *, rope_mode: str, head_norm: Norm = RMS_NORM, gated: bool = False
) -> Tensor:
    """Grouped-query attention. h: normed input f32 [n_tokens, n_embd]; returns f32 [m, n_embd], in
    the last layer of the rows to output alone.

    rope_mode: "norm" turns adjacent values, "neox" those half a head apart, "" none. head_norm: the
    kind of norm that queries and keys get where there are weights for it. gated: the query matrix
    gives each head its query and a gate, whose sigmoid the head's result is multiplied by.
    """
    hp, inp = at.hp, at.inp
    k = clamped(at, linear(at, "attn_k", h, "k"), "k")
    v = clamped(at, linear(at, "attn_v", h, "v"), "v")
    here = inp.rows
    h = at.needed(h)
    if h.shape[0] != inp.key.n_tokens:
        here = inp.out_rows
    q = clamped(at, linear(at, "attn_q", h, "q"), "q")
    gate = None
    if gated:
        both = at.g.reshape(q, (q.shape[0], hp.n_head, 2 * hp.head_dim))
        q, gate = (
            at.g.reshape(at.g.cont(at.g.slice(both, 2, i * hp.head_dim, (i + 1) * hp.head_dim),
                                   name=name), (h.shape[0], -1))
            for i, name in enumerate(("query", "gate"))
        )  # fmt: skip
    q = heads(at, q, hp.n_head, "q", head_norm)
    k = heads(at, k, hp.n_head_kv, "k", head_norm)
    q = rope(at, q, here.pos, rope_mode, "q_rope")
    k = rope(at, k, inp.rows.pos, rope_mode, "k_rope")
    out = attend(at, q, k, v, here)
    if gate is not None:
        out = at.g.mul(out, at.g.sigmoid(gate, name="gate_act"), name="gated")
    return linear(at, "attn_output", out, "out")


def clamped(at: Site, x: Tensor, name: str) -> Tensor:
    """x within the bound of queries, keys and values, where there is one."""
    bound = at.hp.clamp_kqv
    return at.g.clamp(x, min=-bound, max=bound, name=f"{name}_clamped") if bound else x


def heads(at: Site, x: Tensor, n: int, name: str, norm: Norm) -> Tensor:
    """x [m, n hd] as n heads [m, n, hd], with the norm `attn_{name}_norm` if there is one: over
    each head, by the weight of all or by its own, or over all of them together where the weight is
    that long."""
    weight = at.find(f"attn_{name}_norm.weight")
    whole = weight is not None and weight.shape == x.shape[1:]
    if whole:
        x = norm(at, f"attn_{name}_norm", x, f"{name}_norm")
    x = at.g.reshape(x, (x.shape[0], n, x.shape[1] // n))
    if weight is None or whole:
        return x
    return norm(at, f"attn_{name}_norm", x, f"{name}_norm")


def rope(at: Site, x: Tensor, pos: Tensor, mode: str, name: str, stretched: bool = True) -> Tensor:
    """Heads turned by their positions: f32 [m, n, hd]. As they are where the layer turns none.

    stretched: by the file's frequency factors, if it has any.
    """
    hp = at.hp
    if not mode or not hp.rope_dims:
        return x
    factors = at.weights.get("rope_freqs.weight") if stretched else None
    return at.g.rope(x, pos, factors, n_dims=hp.rope_dims, mode=mode, freq_base=hp.rope_base,
                     name=name, **hp.rope_scaling)  # fmt: skip


def attend(at: Site, q: Tensor, k: Tensor, v: Tensor, here: Rows) -> Tensor:
    """Keys [n_tokens, n_head_kv, hd] and values [n_tokens, n_v] go to the cache, and q [m, n_head,
    hd], whose rows stand at `here`, attends over it: f32 [m, n_head hd_v]."""
    g, kv = at.g, at.inp.kv(at.i, cache_layer(at.hp))
    assert kv.v is not None
    k = g.reshape(k, (k.shape[0], at.hp.n_embd_kv))
    k_rows = g.set_rows(kv.k, k, kv.rows, name="kv_k")
    v_rows = g.set_rows(kv.v, v, kv.rows, name="kv_v")
    return attend_over(at, q, k_rows, v_rows, kv.table, here)


def attend_over(
    at: Site, q: Tensor, k_rows: Tensor, v_rows: Tensor, table: Tensor, here: Rows
) -> Tensor:
    """q [m, n_head, hd], whose rows stand at `here`, attends over rows of a cache, which `table`
    gives the pages of: f32 [m, n_head hd_v]."""
    g, hp, n_rows = at.g, at.hp, k_rows.shape[0]
    out = g.attention(
        q,
        g.reshape(k_rows, (n_rows, hp.n_head_kv, hp.head_dim)),
        g.reshape(v_rows, (n_rows, hp.n_head_kv, hp.head_dim_v)),
        here.sees,
        here.seq,
        table,
        at.find("attn_sinks.weight"),
        scale=hp.attn_scale or 1.0 / math.sqrt(hp.head_dim),
        softcap=hp.attn_softcap,
        max_bias=hp.alibi_bias,
        window=hp.sliding_window,
        n_single=here.n_single,
        name="kqv",
    )
    return g.reshape(out, (q.shape[0], hp.n_head * hp.head_dim_v))


def cache_layer(hp: HParams) -> CacheLayer:
    """What attention keeps of every token."""
    return CacheLayer(hp.n_embd_kv, hp.n_head_kv * hp.head_dim_v, hp.sliding_window)


def attention_weights(hp: HParams, *, gated: bool = False) -> Iterator[WeightSpec]:
    """Of `attention`, without norms of heads. A file may hold q, k and v as one, in this order."""
    n_q = hp.n_head * hp.head_dim
    sizes = 2 * n_q if gated else n_q, hp.n_embd_kv, hp.n_head_kv * hp.head_dim_v
    for i, part in enumerate("qkv"):
        rows = "attn_qkv", sum(sizes[:i]), sum(sizes)
        yield from linear_weights(f"attn_{part}", sizes[i], hp.n_embd, rows)
    yield from linear_weights("attn_output", hp.n_embd, hp.n_head * hp.head_dim_v)


def head_norm_weights(q: int, k: int, norm: Norm = RMS_NORM) -> Iterator[WeightSpec]:
    """Of norms of queries and keys over so many values."""
    yield from norm.weights("attn_q_norm", q)
    yield from norm.weights("attn_k_norm", k)
