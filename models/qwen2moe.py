"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts, whose shares need not sum to one, and a shared
expert with a gate.

Source: Yang et al. 2024 (arXiv 2407.10671).
"""

from __future__ import annotations

from gguflow.engine.dataclass import replace

from .hparams import HParams
from .parts import Experts
from .qwen2 import Qwen2


class Qwen2Moe(Qwen2):
    name = "qwen2moe"
    routing = Experts(score="softmax", norm=False)

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), experts=Experts(6, 3, 32, 48, norm=False))
