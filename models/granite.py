"""Granite: LLaMA with a number of its own for the scale of embeddings, of attention's scores, of
what blocks add to the residual stream, and of the logits.

Source: IBM Granite team 2024, "Granite 3.0 Language Models"; the numbers are those of muP (Yang et
al. 2022, arXiv 2203.03466).
"""

from __future__ import annotations

from typing import ClassVar

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Tensor

from .blocks import Site, logits
from .hparams import HParams
from .llama import Llama


class Granite(Llama):
    name = "granite"
    reads: ClassVar = {
        "embd_scale": 1.0, "attn_scale": 0.0, "residual_scale": 1.0, "logit_scale": 1.0
    }  # fmt: skip

    def logits(self, at: Site, x: Tensor) -> Tensor:
        return logits(at, x, norm=self.norm, scale=1.0 / at.hp.logit_scale)

    @classmethod
    def tiny(cls) -> HParams:
        return replace(
            super().tiny(), embd_scale=6.0, attn_scale=0.1, residual_scale=0.5, logit_scale=2.0
        )
