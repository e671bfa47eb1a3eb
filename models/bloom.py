"""BLOOM: LayerNorms, biases, GELU, a norm over the embeddings, and positions by ALiBi.

Source: BigScience 2022 (arXiv 2211.05100); Press et al. 2021 (arXiv 2108.12409).
"""

from __future__ import annotations

from collections.abc import Iterator

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Tensor

from .base import WeightSpec
from .blocks import LAYER_NORM, Site
from .forms import Sequential
from .hparams import HParams


class Bloom(Sequential):
    name = "bloom"
    norm = LAYER_NORM
    rope_mode = ""
    act = "gelu"
    gated = False

    def layer_hparams(self, i: int) -> HParams:
        return replace(super().layer_hparams(i), alibi_bias=8.0)

    def weights(self) -> Iterator[WeightSpec]:
        yield from super().weights()
        yield from self.norm.weights("token_embd_norm", self.hp.n_embd)

    def embed(self, at: Site) -> Tensor:
        return self.norm(at, "token_embd_norm", super().embed(at), "embd_norm")
