"""Baichuan and Baichuan 2: LLaMA; the 13B models have ALiBi instead of rotary positions.

Source: Yang et al. 2023 (arXiv 2309.10305).
"""

from __future__ import annotations

from gguflow.engine.dataclass import replace

from .hparams import HParams
from .llama import Llama

N_LAYER_13B = 40


class Baichuan(Llama):
    name = "baichuan"
    routing = None

    def layer_hparams(self, i: int) -> HParams:
        hp = super().layer_hparams(i)
        return replace(hp, rope_dims=0, alibi_bias=8.0) if hp.n_layer == N_LAYER_13B else hp
