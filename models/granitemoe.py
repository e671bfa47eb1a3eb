"""Granite MoE: Granite with experts, and a shared one in some.

Source: IBM Granite team 2024, "Granite 3.0 Language Models".
"""

from __future__ import annotations

from gguflow.engine.dataclass import replace

from .granite import Granite
from .hparams import HParams
from .parts import Experts


class GraniteMoe(Granite):
    name = "granitemoe"
    routing = Experts(score="softmax", norm=True)

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), experts=Experts(6, 2, 32, 32))
