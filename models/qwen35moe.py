"""Qwen3.5 with experts and a shared one with a gate.

Source: Qwen team 2026, "Qwen3.5".
"""

from __future__ import annotations

from gguflow.engine.dataclass import replace

from .hparams import HParams
from .parts import Experts
from .qwen35 import Qwen35


class Qwen35Moe(Qwen35):
    name = "qwen35moe"
    routing = Experts(score="softmax", norm=True)

    @classmethod
    def tiny(cls) -> HParams:
        experts = Experts(6, 3, 32, 32)
        return replace(super().tiny(), experts=experts)
