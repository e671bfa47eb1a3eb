"""ERNIE 4.5 with experts after the first layers, chosen with a bias, and shared ones.

Source: Baidu 2025, "ERNIE 4.5 Technical Report".
"""

from __future__ import annotations

from gguflow.engine.dataclass import replace

from .ernie4_5 import Ernie45
from .hparams import HParams
from .parts import Experts


class Ernie45Moe(Ernie45):
    name = "ernie4_5-moe"
    routing = Experts(score="softmax", norm=True)

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), n_layer=3, experts=Experts(6, 2, 32, 32, n_dense=1))
