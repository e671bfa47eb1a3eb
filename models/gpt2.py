"""GPT-2: LayerNorms, biases, GELU, and learned embeddings of positions.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from __future__ import annotations

from collections.abc import Iterator

from .base import WeightSpec
from .blocks import LAYER_NORM
from .forms import Sequential


class Gpt2(Sequential):
    name = "gpt2"
    norm = LAYER_NORM
    rope_mode = ""
    act = "gelu"
    gated = False

    def weights(self) -> Iterator[WeightSpec]:
        yield from super().weights()
        yield WeightSpec("position_embd.weight", (self.hp.n_ctx_train, self.hp.n_embd))
