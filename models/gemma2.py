"""Gemma 2: Gemma with norms after attention and feed-forward too, caps on the scores of attention
and on the logits, and a sliding window in every other layer.

Source: Gemma team 2024 (arXiv 2408.00118).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from gguflow.engine.graph import Tensor

from .base import WeightSpec
from .blocks import Site, attention, ffn, residual
from .gemma import Gemma
from .hparams import HParams

LAYERS_27B = 46  # of the model whose queries are scaled by the width a head has of the embedding


class Gemma2(Gemma):
    name = "gemma2"
    reads: ClassVar = {"attn_softcap": 50.0, "logit_softcap": 30.0, "sliding_window": 4096}
    full_every = 2

    def layer_hparams(self, i: int) -> HParams:
        hp = super().layer_hparams(i)
        if hp.n_layer == LAYERS_27B:
            return replace(hp, attn_scale=(hp.n_embd / hp.n_head) ** -0.5)
        return hp

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        yield from super().layer_weights(hp)
        yield from self.norm.weights("post_attention_norm", hp.n_embd)
        yield from self.norm.weights("post_ffw_norm", hp.n_embd)

    def attend(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("attn"):
            out = attention(at, self.norm(at, "attn_norm", x), rope_mode=self.rope_mode)
            return residual(at, x, self.norm(at, "post_attention_norm", out, "post_norm"))

    def feed_forward(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("ffn"):
            out = ffn(at, self.norm(at, "ffn_norm", x), act="gelu")
            return residual(at, x, self.norm(at, "post_ffw_norm", out, "post_norm"))

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), sliding_window=8, attn_softcap=5.0, logit_softcap=3.0)
