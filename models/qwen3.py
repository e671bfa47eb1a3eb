"""Qwen3: Qwen2 without the biases, with an RMS norm on every query and key head.

Source: Yang et al. 2025 (arXiv 2505.09388).
"""

from __future__ import annotations

from collections.abc import Iterator

from .base import WeightSpec
from .blocks import head_norm_weights
from .hparams import HParams
from .qwen2 import Qwen2


class Qwen3(Qwen2):
    name = "qwen3"

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        yield from super().layer_weights(hp)
        yield from head_norm_weights(hp.head_dim, hp.head_dim)
