"""OLMoE: LLaMA with experts and norms over all query heads and all key heads together.

Source: Muennighoff et al. 2024 (arXiv 2409.02060).
"""

from __future__ import annotations

from collections.abc import Iterator

from gguflow.engine.dataclass import replace

from .base import WeightSpec
from .blocks import head_norm_weights
from .hparams import HParams
from .llama import Llama
from .parts import Experts


class Olmoe(Llama):
    name = "olmoe"
    rope_mode = "neox"
    routing = Experts(score="softmax", norm=False)

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        yield from super().layer_weights(hp)
        yield from head_norm_weights(hp.n_head * hp.head_dim, hp.n_embd_kv)

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), experts=Experts(6, 2, 32, norm=False))
