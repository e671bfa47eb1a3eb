"""Qwen3: Qwen2 without the biases, with an RMS norm on every query and key head.

Source: Yang et al. 2025 (arXiv 2505.09388).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gguflow.engine.graph import Graph, Tensor

from .base import WeightSpec
from .qwen2 import Qwen2


class Qwen3(Qwen2):
    name = "qwen3"

    def weights(self) -> Iterator[WeightSpec]:
        yield from super().weights()
        for i in range(self.hp.n_layer):
            yield WeightSpec(f"blk.{i}.attn_q_norm.weight", (self.hp.head_dim,))
            yield WeightSpec(f"blk.{i}.attn_k_norm.weight", (self.hp.head_dim,))

    def head_norms(
        self, g: Graph, w: Mapping[str, Tensor], i: int, q: Tensor, k: Tensor
    ) -> tuple[Tensor, Tensor]:
        return (self.norm(g, q, w[f"blk.{i}.attn_q_norm.weight"], "q_norm"),
                self.norm(g, k, w[f"blk.{i}.attn_k_norm.weight"], "k_norm"))  # fmt: skip
