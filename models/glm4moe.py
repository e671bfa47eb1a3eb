"""GLM-4.5 (MoE): LLaMA with half of a head rotated, experts after the first layers, chosen by
sigmoid scores and a bias, and a shared one; norms on heads in some. The norm before the
feed-forward layer is called `post_attention_norm`. The layer that predicts a token ahead, which
some files have at their end, is left out.

Source: GLM-4.5 team 2025 (arXiv 2508.06471).
"""

from __future__ import annotations

from collections.abc import Iterator

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Tensor

from .base import WeightSpec
from .blocks import (
    Site,
    attention_weights,
    expert_weights,
    ffn_weights,
    head_norm_weights,
    residual,
)
from .forms import Sequential
from .hparams import HParams
from .parts import Experts


class Glm4Moe(Sequential):
    name = "glm4moe"
    rope_mode = "neox"
    routing = Experts(score="sigmoid", norm=True)

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        yield from self.norm.weights("attn_norm", hp.n_embd)
        yield from attention_weights(hp)
        for spec in head_norm_weights(hp.head_dim, hp.head_dim):
            yield replace(spec, optional=True)
        yield from self.norm.weights("post_attention_norm", hp.n_embd)
        if hp.experts is None:
            yield from ffn_weights(hp, gated=True)
        else:
            yield from expert_weights(hp, hp.experts)

    def feed_forward(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("ffn"):
            return residual(at, x, self.mix(at, self.norm(at, "post_attention_norm", x)))

    @classmethod
    def tiny(cls) -> HParams:
        experts = Experts(6, 2, 32, 32, score="sigmoid", scale=1.5, n_dense=1)
        return replace(super().tiny(), rope_dims=8, n_layer=3, experts=experts)
