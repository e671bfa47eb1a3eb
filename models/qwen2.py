"""Qwen2 and Qwen2.5: LLaMA with half-split rotary positions and biases on q, k and v.

Source: Yang et al. 2024 (arXiv 2407.10671).
"""

from __future__ import annotations

from .llama import Llama


class Qwen2(Llama):
    name = "qwen2"
    rope_mode = "neox"
