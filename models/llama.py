"""LLaMA: Llama 1, 2 and 3.x, TinyLlama, SmolLM, Mistral and everything else of that shape; Mixtral,
which is the same with experts.

Pre-norm decoder: x += attention(rms_norm(x)); x += swiglu_ffn(rms_norm(x)). Grouped heads, rotary
positions, optional biases, optional tied embeddings. Sources: Touvron et al. 2023 (arXiv
2302.13971, 2307.09288), Dubey et al. 2024 (arXiv 2407.21783), Jiang et al. 2023 (arXiv 2310.06825),
2024 (arXiv 2401.04088).
"""

from __future__ import annotations

from typing import ClassVar

from .forms import Sequential
from .parts import Experts


class Llama(Sequential):
    name = "llama"
    routing: ClassVar[Experts | None] = Experts(score="softmax", norm=True)
