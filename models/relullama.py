"""ReLULLaMA: LLaMA with ReLU in place of SiLU, so that most neurons of a layer are zero.

PowerInfer's files (Song et al. 2023, arXiv 2312.12456) are this architecture: those that call it
`llama` as it is; those of Bamboo with ReLU on the up projection as well (the key `relu_up`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from .base import WeightSpec
from .hparams import HParams
from .keys import Keys
from .llama import Llama
from .relu import ReluLayers


class ReluLlama(ReluLayers, Llama):
    name = "relullama"
    act = "relu"
    usual_relu_up: ClassVar[bool] = False  # without the key

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Self:
        made = super().from_metadata(metadata, n_vocab)
        arch = made.hp.arch
        # PowerInfer's files keep the name of what they were made from.
        usual = cls.usual_relu_up or arch not in (cls.name, Llama.name)
        made.relu_up = Keys(metadata, arch).flag("relu_up", usual)
        return made

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        """Without biases, which the sparse forms have beside no gate."""
        for spec in super().layer_weights(hp):
            if not (spec.name.startswith("ffn_") and spec.name.endswith(".bias")):
                yield spec
