"""ERNIE 4.5 with experts after the first layers, chosen with a bias, and shared ones.

Source: Baidu 2025, "ERNIE 4.5 Technical Report".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from .ernie4_5 import Ernie45
from .hparams import HParams
from .keys import Keys, ModelError
from .parts import Experts


class Ernie45Moe(Ernie45):
    name = "ernie4_5-moe"
    routing = Experts(score="softmax", norm=True)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Self:
        every = Keys(metadata, cls.name).integer("interleave_moe_layer_step", 1)
        if every != 1:
            raise ModelError(f"{cls.name}.interleave_moe_layer_step: {every} is not supported")
        return super().from_metadata(metadata, n_vocab)

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), n_layer=3, experts=Experts(6, 2, 32, 32, n_dense=1))
