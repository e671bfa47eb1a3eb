"""SmolLM3: LLaMA without rotary positions in every fourth layer.

Source: Hugging Face 2025, "SmolLM3"; layers without positions: Yang et al. 2025 (arXiv 2501.18795).
"""

from __future__ import annotations

from gguflow.engine.dataclass import replace

from .hparams import HParams
from .llama import Llama

BARE_EVERY = 4  # of so many layers the last has no positions


class SmolLm3(Llama):
    name = "smollm3"

    def layer_hparams(self, i: int) -> HParams:
        hp = super().layer_hparams(i)
        return replace(hp, rope_dims=0) if (i + 1) % BARE_EVERY == 0 else hp

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), n_layer=5)
