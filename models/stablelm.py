"""StableLM (3B, StableLM 2 1.6B): LLaMA with LayerNorms; a quarter of a head is rotated.

Source: Bellagente et al. 2024 (arXiv 2402.17834).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from .blocks import LAYER_NORM
from .forms import Sequential
from .hparams import HParams
from .keys import Keys, ModelError


class StableLm(Sequential):
    name = "stablelm"
    norm = LAYER_NORM
    rope_mode = "neox"

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Self:
        if Keys(metadata, cls.name).flag("use_parallel_residual", False):
            raise ModelError("stablelm.use_parallel_residual: true is not supported")
        return super().from_metadata(metadata, n_vocab)

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), rope_dims=4)
