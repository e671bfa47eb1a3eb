"""Phi-2 (and 1, 1.5): attention and feed-forward of one LayerNorm, biases everywhere, GELU, part of
a head rotated.

Source: Microsoft 2023, "Phi-2: The surprising power of small language models"; Li et al. 2023
(arXiv 2309.05463).
"""

from __future__ import annotations

from gguflow.engine.dataclass import replace

from .blocks import LAYER_NORM
from .forms import Parallel
from .hparams import HParams


class Phi2(Parallel):
    name = "phi2"
    norm = LAYER_NORM
    rope_mode = "neox"
    act = "gelu"
    gated = False

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), rope_dims=8)
