"""StarCoder2: LLaMA with LayerNorms, biases, and GELU instead of a gate.

Source: Lozhkov et al. 2024 (arXiv 2402.19173).
"""

from __future__ import annotations

from .blocks import LAYER_NORM
from .forms import Sequential


class StarCoder2(Sequential):
    name = "starcoder2"
    norm = LAYER_NORM
    rope_mode = "neox"
    act = "gelu"
    gated = False
