"""Phi-3: LLaMA whose files hold q, k and v as one matrix, and gate and up as one.

Source: Abdin et al. 2024 (arXiv 2404.14219).
"""

from __future__ import annotations

from collections.abc import Mapping

from .keys import ModelError
from .llama import Llama


class Phi3(Llama):
    name = "phi3"
    rope_mode = "neox"

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        super().check(tensors)
        for name in ("rope_factors_long.weight", "rope_factors_short.weight"):
            if name in tensors:
                raise ModelError(f"tensor {name}: LongRoPE is not supported")
