"""Command R7B (Cohere 2): attention and feed-forward of one LayerNorm without bias; three layers of
four have a sliding window and rotary positions, the fourth has neither; logits have a scale.

Source: Cohere 2024, "Command R7B"; 2025 (arXiv 2504.00698).
"""

from __future__ import annotations

from typing import ClassVar

from gguflow.engine.dataclass import replace

from .blocks import LAYER_NORM
from .forms import Parallel
from .hparams import HParams


class Cohere2(Parallel):
    name = "cohere2"
    norm = LAYER_NORM
    full_every = 4
    reads: ClassVar = {"logit_scale": 1.0, "sliding_window": 4096}

    def layer_hparams(self, i: int) -> HParams:
        hp = super().layer_hparams(i)
        return hp if hp.sliding_window else replace(hp, rope_dims=0)

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), n_layer=5, sliding_window=8, logit_scale=0.5)
