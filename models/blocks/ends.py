"""The two ends of a decoder: token ids to the residual stream, and that to logits."""

from __future__ import annotations

from collections.abc import Iterator

from gguflow.engine.graph import Tensor

from ..base import WeightSpec
from ..hparams import HParams
from .linear import scaled
from .norm import Norm
from .site import Site


def embed(at: Site, *, scale: float = 1.0) -> Tensor:
    """The embeddings of the run's tokens times `scale`, plus those of their positions if there are
    any: f32 [n_tokens, n_embd]."""
    x = at.g.get_rows(at.weight("token_embd.weight"), at.inp.tokens, name="embd")
    x = scaled(at, x, scale, "embd_scaled")
    positions = at.find("position_embd.weight")
    if positions is None:
        return x
    return at.g.add(x, at.g.get_rows(positions, at.inp.rows.pos, name="pos"), name="embd_pos")


def logits(at: Site, x: Tensor, *, norm: Norm, scale: float = 1.0) -> Tensor:
    """The output head over the rows to output: f32 [n_out, n_vocab], times `scale`, capped.

    The head is the embeddings where the file has no other; it may have a bias.
    """
    g, cap = at.g, at.hp.logit_softcap
    x = norm(at, "output_norm", at.inp.out(x), "output_norm")
    head = at.find("output.weight")
    y = g.mul_mat(at.weight("token_embd.weight") if head is None else head, x, name="logits")
    bias = at.find("output.bias")
    y = y if bias is None else g.add(y, bias, name="logits_bias")
    y = scaled(at, y, scale / cap if cap else scale, "logits_scaled")
    return g.scale(g.tanh(y, name="logits_tanh"), s=cap, name="logits_capped") if cap else y


def end_weights(hp: HParams, norm: Norm) -> Iterator[WeightSpec]:
    """Of `embed` and `logits`, and the frequency factors of `rope`."""
    yield WeightSpec("token_embd.weight", (hp.n_vocab, hp.n_embd))
    yield from norm.weights("output_norm", hp.n_embd)
    yield WeightSpec("output.weight", (hp.n_vocab, hp.n_embd), optional=True)
    yield WeightSpec("output.bias", (hp.n_vocab,), optional=True)
    yield WeightSpec("rope_freqs.weight", (hp.rope_dims // 2,), optional=True)
