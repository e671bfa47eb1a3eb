"""Qwen3-MoE: Qwen3 with experts.

Source: Yang et al. 2025 (arXiv 2505.09388).
"""

from __future__ import annotations

from gguflow.engine.dataclass import replace

from .hparams import HParams
from .parts import Experts
from .qwen3 import Qwen3


class Qwen3Moe(Qwen3):
    name = "qwen3moe"
    routing = Experts(score="softmax", norm=True)

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), experts=Experts(8, 3, 32))
