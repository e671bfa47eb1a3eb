"""Gemma: LLaMA with GELU in the gate, embeddings scaled by their width's root, and a tied head.

The norms' weights are kept as differences from one in the publisher's files; GGUF files hold them
whole. Source: Gemma team 2024 (arXiv 2403.08295).
"""

from __future__ import annotations

from gguflow.engine.graph import Tensor

from .blocks import Site, embed
from .forms import Sequential


class Gemma(Sequential):
    name = "gemma"
    rope_mode = "neox"
    act = "gelu"

    def embed(self, at: Site) -> Tensor:
        return embed(at, scale=at.hp.n_embd**0.5)
