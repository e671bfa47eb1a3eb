"""MPT: LayerNorms without bias, GELU, positions by ALiBi, bounded queries, keys and values.

Source: MosaicML 2023, "Introducing MPT-7B"; Press et al. 2021 (arXiv 2108.12409).
"""

from __future__ import annotations

from typing import ClassVar

from gguflow.engine.dataclass import replace

from .blocks import LAYER_NORM
from .forms import Sequential
from .hparams import HParams


class Mpt(Sequential):
    name = "mpt"
    norm = LAYER_NORM
    rope_mode = ""
    act = "gelu_erf"
    gated = False
    reads: ClassVar = {"alibi_bias": 0.0, "clamp_kqv": 0.0}

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), alibi_bias=8.0, clamp_kqv=1.0)
