"""Falcon: attention and feed-forward side by side, of one LayerNorm (7B) or of one each (40B and
180B); one or few heads of keys and values; no gate and no biases.

Source: Almazrouei et al. 2023 (arXiv 2311.16867).
"""

from __future__ import annotations

from .blocks import LAYER_NORM
from .forms import Parallel


class Falcon(Parallel):
    name = "falcon"
    norm = LAYER_NORM
    two_norms = True
    rope_mode = "neox"
    act = "gelu_erf"
    gated = False
