"""Layers with a state of a fixed size a sequence: gated delta nets and Mamba 2."""

from __future__ import annotations

from collections.abc import Iterator

from gguflow.engine.graph import Tensor

from ..base import WeightSpec
from ..batch import StateLayer
from ..hparams import HParams
from ..parts import Recurrent
from .linear import linear, linear_weights
from .norm import RMS_NORM
from .site import Site


def delta_net(at: Site, h: Tensor, *, tiled: bool) -> Tensor:
    """A gated delta net (Yang et al. 2024, arXiv 2412.06464). h: normed input f32 [n_tokens,
    n_embd]; returns f32 [m, n_embd], in the last layer of the rows to output alone.

    tiled: value head h has the key head h % n_group, and not h // (n_head / n_group).
    """
    g, r = at.g, _recurrent(at.hp)
    states, slot = at.inp.states(at.i, recurrent_cache(at.hp))
    mixed = linear(at, "attn_qkv", h, "qkv")
    beta, alpha = _gates(at, h, r)
    pos = at.inp.rows.pos
    weight = at.weight("ssm_conv1d.weight")
    mixed = g.ssm_conv(mixed, weight, states["conv"], pos, slot, name="conv")
    out = g.gated_delta(
        mixed,
        alpha,
        beta,
        at.weight("ssm_dt.bias"),
        at.weight("ssm_a"),
        states["memory"],
        pos,
        slot,
        n_head_k=r.n_group,
        dk=r.n_state,
        tiled=tiled,
        name="memory",
    )
    out = at.needed(g.reshape(out, (out.shape[0], r.n_inner)))
    gate = linear(at, "attn_gate", at.needed(h), "gate")
    out = g.reshape(out, (out.shape[0], r.n_head, r.head_dim))
    out = g.reshape(RMS_NORM(at, "ssm_norm", out), gate.shape)
    out = g.mul(g.silu(gate, name="act"), out, name="gated")
    return linear(at, "ssm_out", out, "out")


def _gates(at: Site, h: Tensor, r: Recurrent) -> tuple[Tensor, Tensor]:
    """What the shares of corrections and the rates of decay are made of: f32 [m, n_head] each."""
    if at.find("ssm_ba.weight") is None:
        return linear(at, "ssm_beta", h, "beta"), linear(at, "ssm_alpha", h, "alpha")
    # Of the value heads of each key head, one after the other.
    g, n = at.g, r.n_head // r.n_group
    both = linear(at, "ssm_ba", h, "ba")
    both = g.reshape(both, (both.shape[0], r.n_group, 2 * n))
    parts = (
        g.reshape(g.cont(g.slice(both, 2, i * n, (i + 1) * n), name=name), (-1, r.n_head))
        for i, name in enumerate(("beta", "alpha"))
    )
    beta, alpha = parts
    return beta, alpha


def scan_mixer(at: Site, h: Tensor) -> Tensor:
    """A Mamba 2 mixer (Dao and Gu 2024, arXiv 2405.21060). h: normed input f32 [n_tokens, n_embd];
    returns f32 [m, n_embd], in the last layer of the rows to output alone."""
    g, r = at.g, _recurrent(at.hp)
    states, slot = at.inp.states(at.i, recurrent_cache(at.hp))
    pos = at.inp.rows.pos
    every = linear(at, "ssm_in", h, "in")
    ends = r.n_inner, r.n_inner + r.n_mixed, r.n_inner + r.n_mixed + r.n_head
    gate, mixed, dt = (
        g.slice(every, 1, start, end) for start, end in zip((0, *ends), ends, strict=False)
    )
    mixed = g.ssm_conv(
        mixed,
        at.weight("ssm_conv1d.weight"),
        states["conv"],
        pos,
        slot,
        at.find("ssm_conv1d.bias"),
        name="conv",
    )
    a, d = (g.reshape(at.weight(name), (r.n_head,)) for name in ("ssm_a", "ssm_d"))
    out = g.ssm_scan(
        mixed,
        dt,
        at.weight("ssm_dt.bias"),
        a,
        d,
        states["memory"],
        pos,
        slot,
        n_group=r.n_group,
        n_state=r.n_state,
        name="memory",
    )
    out = at.needed(g.reshape(out, (out.shape[0], r.n_inner)))
    gate = at.needed(g.cont(gate, name="gate"))
    out = g.mul(g.silu(gate, name="act"), out, name="gated")
    out = g.reshape(out, (out.shape[0], r.n_group, r.n_inner // r.n_group))
    out = g.rms_norm(out, eps=at.hp.norm_eps, name="norm_rms")
    out = g.mul(out, at.weight("ssm_norm.weight"), name="norm")
    return linear(at, "ssm_out", g.reshape(out, (out.shape[0], r.n_inner)), "out")


def recurrent_cache(hp: HParams) -> StateLayer:
    """The rows before the next one that the convolution sees, and a matrix a head."""
    r = _recurrent(hp)
    return StateLayer({"conv": (r.n_conv - 1) * r.n_mixed, "memory": r.n_inner * r.n_state})


def delta_net_weights(hp: HParams, *, joined: bool) -> Iterator[WeightSpec]:
    """Of `delta_net`. joined: both gates come of one matrix."""
    r, n = _recurrent(hp), hp.n_embd
    yield WeightSpec("attn_qkv.weight", (r.n_mixed, n))
    yield WeightSpec("attn_gate.weight", (r.n_inner, n))
    if joined:
        yield WeightSpec("ssm_ba.weight", (2 * r.n_head, n))
    else:
        yield WeightSpec("ssm_beta.weight", (r.n_head, n))
        yield WeightSpec("ssm_alpha.weight", (r.n_head, n))
    yield WeightSpec("ssm_conv1d.weight", (r.n_mixed, r.n_conv), plain=True)
    yield WeightSpec("ssm_dt.bias", (r.n_head,))
    yield WeightSpec("ssm_a", (r.n_head,), plain=True)
    yield WeightSpec("ssm_norm.weight", (r.head_dim,), plain=True)
    yield WeightSpec("ssm_out.weight", (n, r.n_inner))


def scan_mixer_weights(hp: HParams) -> Iterator[WeightSpec]:
    """Of `scan_mixer`."""
    r, n = _recurrent(hp), hp.n_embd
    yield from linear_weights("ssm_in", r.n_inner + r.n_mixed + r.n_head, n)
    yield WeightSpec("ssm_conv1d.weight", (r.n_mixed, r.n_conv), plain=True)
    yield WeightSpec("ssm_conv1d.bias", (r.n_mixed,), optional=True)
    yield WeightSpec("ssm_dt.bias", (r.n_head,))
    yield WeightSpec("ssm_a", (r.n_head, 1), plain=True)
    yield WeightSpec("ssm_d", (r.n_head, 1), plain=True)
    yield WeightSpec("ssm_norm.weight", (r.n_group, r.n_inner // r.n_group), plain=True)
    yield from linear_weights("ssm_out", n, r.n_inner)


def _recurrent(hp: HParams) -> Recurrent:
    assert hp.recurrent is not None
    return hp.recurrent
