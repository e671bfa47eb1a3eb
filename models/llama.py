"""LLaMA: Llama 1, 2 and 3.x, TinyLlama, SmolLM, Mistral and everything else of that shape.

Pre-norm decoder: x += attention(rms_norm(x)); x += swiglu_ffn(rms_norm(x)). Grouped heads, rotary
positions, optional biases, optional tied embeddings. Sources: Touvron et al. 2023 (arXiv
2302.13971, 2307.09288), Dubey et al. 2024 (arXiv 2407.21783), Jiang et al. 2023 (arXiv 2310.06825).
"""

from __future__ import annotations

from collections.abc import Iterator

from gguflow.engine.graph import Tensor

from .base import WeightSpec
from .blocks import Site, attention, attention_weights, ffn, ffn_weights, residual
from .decoder import Decoder
from .hparams import HParams


class Llama(Decoder):
    name = "llama"

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        yield from self.norm.weights("attn_norm", hp.n_embd)
        yield from attention_weights(hp)
        yield from self.norm.weights("ffn_norm", hp.n_embd)
        yield from ffn_weights(hp, gated=True)

    def layer(self, at: Site, x: Tensor) -> Tensor:
        return self.feed_forward(at, self.attend(at, x))

    def attend(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("attn"):
            h = self.norm(at, "attn_norm", x)
            return residual(at, x, attention(at, h, rope_mode=self.rope_mode))

    def feed_forward(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("ffn"):
            h = self.norm(at, "ffn_norm", x)
            return residual(at, x, ffn(at, h, act="silu"))
