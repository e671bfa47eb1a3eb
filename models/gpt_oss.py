"""gpt-oss: experts with biases and a clamped activation, chosen and weighed by the logits of the
chosen alone; a sink for each head of attention; a sliding window in every other layer. Its YaRN
blends between two parts of pairs of rope, where others take whole ones.

Source: OpenAI 2025 (arXiv 2508.10925).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Tensor

from .base import WeightSpec
from .blocks import Site, attention_weights, expert_weights, residual
from .forms import Sequential
from .hparams import HParams
from .parts import Experts


class GptOss(Sequential):
    name = "gpt-oss"
    rope_mode = "neox"
    act = "swiglu_clamped"
    full_every = 2
    routing = Experts(score="chosen")
    reads: ClassVar = {"sliding_window": 128}

    def layer_hparams(self, i: int) -> HParams:
        hp = super().layer_hparams(i)
        if "ext_factor" in hp.rope_scaling:
            return replace(hp, rope_scaling={**hp.rope_scaling, "whole_pairs": 0})
        return hp

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        yield from self.norm.weights("attn_norm", hp.n_embd)
        yield from attention_weights(hp)
        yield WeightSpec("attn_sinks.weight", (hp.n_head,))
        yield from self.norm.weights("post_attention_norm", hp.n_embd)
        assert hp.experts is not None
        yield from expert_weights(hp, hp.experts)

    def feed_forward(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("ffn"):
            return residual(at, x, self.mix(at, self.norm(at, "post_attention_norm", x)))

    @classmethod
    def tiny(cls) -> HParams:
        experts = Experts(6, 3, 32, score="chosen")
        return replace(super().tiny(), sliding_window=8, n_layer=3, experts=experts)
