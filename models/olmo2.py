"""OLMo 2: norms after attention and feed-forward instead of before, and over all query heads and
all key heads together. OLMo 3: a sliding window in three layers of four, whose rotation is not
scaled.

Source: OLMo team 2024 (arXiv 2501.00656), 2025 (arXiv 2512.13961).
"""

from __future__ import annotations

from collections.abc import Iterator

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Tensor

from .base import WeightSpec
from .blocks import (
    Site,
    attention,
    attention_weights,
    ffn,
    ffn_weights,
    head_norm_weights,
    residual,
)
from .decoder import Decoder
from .hparams import HParams


class Olmo2(Decoder):
    name = "olmo2"
    rope_mode = "neox"
    full_every = 4

    def layer_hparams(self, i: int) -> HParams:
        hp = super().layer_hparams(i)
        return replace(hp, rope_scaling={}) if hp.sliding_window else hp

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        yield from attention_weights(hp)
        yield from head_norm_weights(hp.n_head * hp.head_dim, hp.n_embd_kv)
        yield from self.norm.weights("post_attention_norm", hp.n_embd)
        yield from ffn_weights(hp, gated=True)
        yield from self.norm.weights("post_ffw_norm", hp.n_embd)

    def layer(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("attn"):
            out = attention(at, x, rope_mode=self.rope_mode)
            x = residual(at, x, self.norm(at, "post_attention_norm", out, "post_norm"))
        with at.g.scope("ffn"):
            out = ffn(at, x, act=self.act)
            return residual(at, x, self.norm(at, "post_ffw_norm", out, "post_norm"))
