"""Attention whose keys and values are products of one latent vector a token, which is all that the
cache holds (DeepSeek-V2, arXiv 2405.04434). The products with the latent are moved to the queries
and to the results, so that all heads attend over the latents themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gguflow.engine.graph import Tensor

from ..base import WeightSpec
from ..batch import CacheLayer
from ..hparams import HParams
from ..parts import Latent
from .attention import rope
from .linear import linear, linear_weights
from .norm import RMS_NORM
from .site import Site


def latent_attention(at: Site, h: Tensor, *, rope_mode: str) -> Tensor:
    """h: normed input f32 [n_tokens, n_embd]; returns f32 [m, n_embd], in the last layer of the
    rows to output alone."""
    g, hp, inp = at.g, at.hp, at.inp
    m = _latent(hp)
    plain = m.head_dim - hp.rope_dims
    kv = linear(at, "attn_kv_a_mqa", h, "kv_a")
    latent = RMS_NORM(at, "attn_kv_a_norm", g.slice(kv, 1, 0, m.n_kv), "latent")
    turned = g.reshape(g.cont(g.slice(kv, 1, m.n_kv, kv.shape[1])), (-1, 1, hp.rope_dims))
    turned = rope(at, turned, inp.rows.pos, rope_mode, "k_rope")
    k = g.concat(latent, g.reshape(turned, (-1, hp.rope_dims)), axis=-1, name="k")

    here = inp.rows
    h = at.needed(h)
    if h.shape[0] != inp.key.n_tokens:
        here = inp.out_rows
    q = h
    if m.n_q:
        q = RMS_NORM(at, "attn_q_a_norm", linear(at, "attn_q_a", h, "q_a"), "q_latent")
    q = linear(at, "attn_q_b" if m.n_q else "attn_q", q, "q")
    q = g.reshape(q, (q.shape[0], hp.n_head, m.head_dim))
    q_turned = rope(at, g.slice(q, 2, plain, m.head_dim), here.pos, rope_mode, "q_rope")
    absorbed = by_head(at, "attn_k_b", g.slice(q, 2, 0, plain), "q_absorbed")
    q = g.concat(absorbed, q_turned, axis=-1, name="q_all")

    cache = inp.kv(at.i, latent_cache(hp))
    rows = g.set_rows(cache.k, k, cache.rows, name="kv_k")
    keys = g.reshape(rows, (rows.shape[0], 1, k.shape[1]))
    out = g.attention(
        q,
        keys,
        g.slice(keys, 2, 0, m.n_kv),
        here.sees,
        here.seq,
        cache.table,
        scale=hp.attn_scale or 1.0 / math.sqrt(m.head_dim),
        n_single=here.n_single,
        name="kqv",
    )
    out = by_head(at, "attn_v_b", out, "values")
    return linear(at, "attn_output", g.reshape(out, (out.shape[0], -1)), "out")


def by_head(at: Site, weight: str, x: Tensor, name: str) -> Tensor:
    """x f32 [m, n_head, k] times each head's own matrix [n, k]: f32 [m, n_head, n]."""
    g = at.g
    y = g.mul_mat(at.weight(f"{weight}.weight"), g.permute(x, (1, 0, 2)), name=f"{name}_mm")
    return g.cont(g.permute(y, (1, 0, 2)), name=name)


def latent_cache(hp: HParams) -> CacheLayer:
    """The latent and the rotated part of the keys; values are the former."""
    return CacheLayer(_latent(hp).n_kv + hp.rope_dims, 0)


def latent_weights(hp: HParams) -> Iterator[WeightSpec]:
    """Of `latent_attention`."""
    m, n = _latent(hp), hp.n_embd
    wide = hp.n_head * m.head_dim
    if m.n_q:
        yield from linear_weights("attn_q_a", m.n_q, n)
        yield from RMS_NORM.weights("attn_q_a_norm", m.n_q)
        yield from linear_weights("attn_q_b", wide, m.n_q)
    else:
        yield from linear_weights("attn_q", wide, n)
    yield from linear_weights("attn_kv_a_mqa", m.n_kv + hp.rope_dims, n)
    yield from RMS_NORM.weights("attn_kv_a_norm", m.n_kv)
    yield WeightSpec("attn_k_b.weight", (hp.n_head, m.n_kv, m.head_dim - hp.rope_dims))
    yield WeightSpec("attn_v_b.weight", (hp.n_head, m.head_dim_v, m.n_kv))
    yield from linear_weights("attn_output", n, hp.n_head * m.head_dim_v)


def _latent(hp: HParams) -> Latent:
    assert hp.latent is not None
    return hp.latent
