"""Gemma 3: Gemma 2 with normed heads instead of capped scores, a full layer in six, and another
base of rotation in the layers with a window.

Source: Gemma team 2025 (arXiv 2503.19786).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from gguflow.engine.dataclass import replace

from .base import WeightSpec
from .blocks import head_norm_weights
from .gemma2 import Gemma2
from .hparams import HParams


class Gemma3(Gemma2):
    name = "gemma3"
    full_every = 6
    reads: ClassVar = {"logit_softcap": 0.0, "rope_base_window": 10000.0, "sliding_window": 1024}
    n_layer_27b = 62

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        yield from super().layer_weights(hp)
        yield from head_norm_weights(hp.head_dim, hp.head_dim)

    def layer_hparams(self, i: int) -> HParams:
        hp = super().layer_hparams(i)
        if hp.sliding_window:
            return replace(hp, rope_base=hp.rope_base_window, rope_scaling={})
        return hp

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), attn_softcap=0.0, rope_base_window=100.0, n_layer=7)
