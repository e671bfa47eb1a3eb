"""GLM-4 (0414): LLaMA with norms after attention and feed-forward too; half of a head is rotated.

Source: GLM team 2024 (arXiv 2406.12793).
"""

from __future__ import annotations

from gguflow.engine.dataclass import replace

from .hparams import HParams
from .llama import Llama


class Glm4(Llama):
    name = "glm4"
    post_norms = True

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), rope_dims=8)
