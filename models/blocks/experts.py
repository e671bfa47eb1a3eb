"""Feed-forward layers of experts: each token goes through the few that the router gives it."""

from __future__ import annotations

from collections.abc import Iterator

from gguflow.engine.graph import Tensor

from ..base import Part, WeightSpec
from ..hparams import HParams
from ..parts import Experts
from .ffn import GLU
from .linear import linear, linear_weights
from .site import Site


def experts(at: Site, h: Tensor, *, act: str, routed: Tensor | None = None) -> Tensor:
    """The chosen experts' outputs, summed by their shares, plus that of the shared one. h: normed
    input f32 [m, n_embd]; returns the same shape. act: an op of one operand, or `swiglu_clamped`.
    routed: what the router sees, where that is something else.
    """
    g, e = at.g, at.hp.experts
    assert e is not None
    logits = linear(at, "ffn_gate_inp", h if routed is None else routed, "router")
    chosen_by = {"score": e.score, "n_group": e.n_group, "n_group_used": e.n_group_used}
    bias = at.find("exp_probs_b.bias")
    ids = g.route(logits, bias, n_used=e.n_used, name="experts", **chosen_by)
    shares = g.route_weights(logits, ids, score=e.score, norm=e.norm, scale=e.scale, name="shares")
    if at.find("ffn_down_exps.scale") is not None:
        shares = g.mul(shares, scale_of_each(at, ids), name="shares_scaled")
    gate = each(at, "ffn_gate_exps", h, ids, "gate")
    up = each(at, "ffn_up_exps", h, ids, "up")
    out = each(at, "ffn_down_exps", gated(at, gate, up, act), ids, "down")
    out = g.moe_sum(out, shares, name="sum")
    if not e.n_ff_shared:
        return out
    with g.scope("shared"):
        return g.add(out, shared(at, h, act), name="both")


def each(at: Site, weight: str, x: Tensor, ids: Tensor, name: str) -> Tensor:
    """Products with the experts' own matrices: f32 [m, n_used, n]."""
    bias = at.find(f"{weight}.bias")
    return at.g.mul_mat_id(at.weight(f"{weight}.weight"), x, ids, bias, name=name)


def scale_of_each(at: Site, ids: Tensor) -> Tensor:
    """The numbers that chosen experts' outputs are multiplied by: f32 [m, n_used]."""
    g, scales = at.g, at.weight("ffn_down_exps.scale")
    table = g.reshape(scales, (scales.shape[0], 1))
    rows = g.get_rows(table, g.reshape(ids, (ids.size,)), name="scales")
    return g.reshape(rows, ids.shape)


def gated(at: Site, gate: Tensor, up: Tensor, act: str) -> Tensor:
    """An activated gate times up."""
    if act == "swiglu_clamped":
        return at.g.swiglu_clamped(gate, up, name="swiglu")
    return at.g.mul(at.g.op(act, gate, name="act"), up, name=GLU[act])


def shared(at: Site, h: Tensor, act: str) -> Tensor:
    """The expert that every token goes through, times a share of its own where there is one."""
    gate, up = (linear(at, f"ffn_{part}_shexp", h, part) for part in ("gate", "up"))
    out = linear(at, "ffn_down_shexp", gated(at, gate, up, act), "down")
    if at.find("ffn_gate_inp_shexp.weight") is None:
        return out
    share = at.g.sigmoid(linear(at, "ffn_gate_inp_shexp", h, "router"), name="share")
    return at.g.mul(out, share, name="weighed")


def expert_weights(hp: HParams, e: Experts) -> Iterator[WeightSpec]:
    """Of `experts`; biases, and the router's own for the choice, may be absent. A file may hold the
    experts' gate and up as one, in this order."""
    n, both = hp.n_embd, "ffn_gate_up_exps.weight"
    yield from linear_weights("ffn_gate_inp", e.n, n)
    yield WeightSpec("exp_probs_b.bias", (e.n,), optional=True)
    parts = {"gate": Part(both, 0, 2 * e.n_ff), "up": Part(both, e.n_ff, 2 * e.n_ff)}
    for part, rows, columns in (("gate", e.n_ff, n), ("up", e.n_ff, n), ("down", n, e.n_ff)):
        shape = e.n, rows, columns
        yield WeightSpec(f"ffn_{part}_exps.weight", shape, part=parts.get(part))
        yield WeightSpec(f"ffn_{part}_exps.bias", (e.n, rows), optional=True, plain=True)
    if e.n_ff_shared:
        yield WeightSpec("ffn_gate_inp_shexp.weight", (1, n), optional=True)
        yield from linear_weights("ffn_gate_shexp", e.n_ff_shared, n)
        yield from linear_weights("ffn_up_shexp", e.n_ff_shared, n)
        yield from linear_weights("ffn_down_shexp", n, e.n_ff_shared)
