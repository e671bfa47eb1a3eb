"""DeepSeek-V2, V3 and R1: latent attention, experts after the first layers, and shared ones.

Sources: DeepSeek-AI 2024 (arXiv 2405.04434, 2412.19437). YaRN scales the scores of attention there
and leaves the magnitude of rotated values alone, unless the file gives one: it then counts for all
scores, and for those of rotated values twice, as llama.cpp has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Self

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Tensor

from .base import WeightSpec
from .batch import CacheLayer
from .blocks import (
    Site,
    expert_weights,
    ffn_weights,
    latent_attention,
    latent_cache,
    latent_weights,
    residual,
)
from .forms import Sequential
from .hparams import HParams
from .keys import Keys
from .parts import Experts, Latent, read_latent


class DeepSeek2(Sequential):
    name = "deepseek2"
    routing = Experts(score="softmax", norm=False)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Self:
        k = Keys(metadata, cls.name)
        hp = replace(super().from_metadata(metadata, n_vocab).hp, latent=read_latent(k))
        stretch = hp.rope_scaling.get("freq_scale", 1.0)
        if hp.rope_scaling.get("ext_factor"):
            grown = 1.0 + k.real("rope.scaling.yarn_log_multiplier", 0.0) * math.log(1 / stretch)
            assert hp.latent is not None
            magnitude = hp.rope_scaling.get("attn_factor", 1.0)  # of the scores too
            usual = 1 + 0.1 * math.log(1 / stretch)  # what the op multiplies it by
            scaling = {**hp.rope_scaling, "attn_factor": magnitude / usual}
            scale = (magnitude * grown) ** 2 / math.sqrt(hp.latent.head_dim)
            hp = replace(hp, rope_scaling=scaling, attn_scale=scale)
        return cls(hp)

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        yield from self.norm.weights("attn_norm", hp.n_embd)
        yield from latent_weights(hp)
        yield from self.norm.weights("ffn_norm", hp.n_embd)
        if hp.experts is None:
            yield from ffn_weights(hp, gated=True)
        else:
            yield from expert_weights(hp, hp.experts)

    def cache(self, i: int) -> CacheLayer:
        return latent_cache(self.layer_hparams(i))

    def attend(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("attn"):
            h = self.norm(at, "attn_norm", x)
            return residual(at, x, latent_attention(at, h, rope_mode=self.rope_mode))

    @classmethod
    def tiny(cls) -> HParams:
        experts = Experts(8, 2, 32, 32, norm=False, n_group=4, n_group_used=2, n_dense=1)
        return replace(
            super().tiny(), n_head_kv=1, head_dim=40, head_dim_v=32, rope_dims=8, n_layer=3,
            experts=experts, latent=Latent(24, 32, 24, 16),
        )  # fmt: skip
