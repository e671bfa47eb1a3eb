"""Gemma 2: Gemma with norms after attention and feed-forward too, caps on the scores of attention
and on the logits, and a sliding window in every other layer.

Source: Gemma team 2024 (arXiv 2408.00118).
"""

from __future__ import annotations

from typing import ClassVar

from gguflow.engine.dataclass import replace

from .gemma import Gemma
from .hparams import HParams


class Gemma2(Gemma):
    name = "gemma2"
    post_norms = True
    full_every = 2
    reads: ClassVar = {"attn_softcap": 50.0, "logit_softcap": 30.0, "sliding_window": 4096}
    n_layer_27b = 46  # of the model that scales queries by the width a head has of the embedding

    def layer_hparams(self, i: int) -> HParams:
        hp = super().layer_hparams(i)
        if hp.n_layer == self.n_layer_27b:
            return replace(hp, attn_scale=(hp.n_embd / hp.n_head) ** -0.5)
        return hp

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), sliding_window=8, attn_softcap=5.0, logit_softcap=3.0)
