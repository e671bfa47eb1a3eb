"""Gemma: LLaMA with GELU in the gate, embeddings scaled by their width's root, and a tied head.

The norms' weights are kept as differences from one in the publisher's files; GGUF files hold them
whole. Source: Gemma team 2024 (arXiv 2403.08295).
"""

from __future__ import annotations

from gguflow.engine.graph import Tensor

from .blocks import Site, embed, ffn, residual
from .llama import Llama


class Gemma(Llama):
    name = "gemma"
    rope_mode = "neox"

    def embed(self, at: Site) -> Tensor:
        return embed(at, scale=at.hp.n_embd**0.5)

    def feed_forward(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("ffn"):
            return residual(at, x, ffn(at, self.norm(at, "ffn_norm", x), act="gelu"))
