"""ChatGLM 2 and 3, GLM-4-9B: LLaMA with half of a head rotated, biases on q, k and v, and files
that hold q, k and v as one matrix, and gate and up as one.

Source: GLM team 2024 (arXiv 2406.12793).
"""

from __future__ import annotations

from gguflow.engine.dataclass import replace

from .hparams import HParams
from .llama import Llama


class ChatGlm(Llama):
    name = "chatglm"
    routing = None

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), rope_dims=8)
