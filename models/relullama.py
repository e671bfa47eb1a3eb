"""ReLULLaMA: LLaMA with ReLU in place of SiLU, so that most neurons of a layer are zero.

PowerInfer's files (Song et al. 2023, arXiv 2312.12456) are this architecture: those that call it
`llama` as it is; those of Bamboo with ReLU on the up projection as well (the key `relu_up`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from gguflow.engine.graph import Tensor

from .base import WeightSpec
from .blocks import Site, attention_weights, ffn, residual
from .hparams import HParams, read_hparams
from .keys import Keys, ModelError
from .llama import Llama


class ReluLlama(Llama):
    """relu_up: ReLU on the up projection too."""

    name = "relullama"
    usual_relu_up: ClassVar[bool] = False  # without the key

    def __init__(self, hp: HParams, relu_up: bool = False) -> None:
        super().__init__(hp)
        self.relu_up = relu_up

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> ReluLlama:
        hp = read_hparams(metadata, n_vocab)
        k = Keys(metadata, hp.arch)
        k.find("sparse_threshold")  # known here, and read where layers are made sparse
        # PowerInfer's files keep the name of what they were made from.
        usual = cls.usual_relu_up or hp.arch not in (cls.name, Llama.name)
        return cls(hp, k.flag("relu_up", usual))

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        """Llama's, with the down matrix transposed, and the predictors that a file may have: two
        matrices that tell from a layer's input which of its neurons will fire."""
        n_ff, n = hp.n_ff, hp.n_embd
        yield from self.norm.weights("attn_norm", n)
        yield from attention_weights(hp)
        yield from self.norm.weights("ffn_norm", n)
        yield WeightSpec("ffn_gate.weight", (n_ff, n))
        yield WeightSpec("ffn_up.weight", (n_ff, n))
        yield WeightSpec("ffn_down_t.weight", (n_ff, n), transposed="ffn_down.weight")
        yield WeightSpec("fc1.weight", (-1, n), optional=True)
        yield WeightSpec("fc2.weight", (n_ff, -1), optional=True)

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        for i in range(self.hp.n_layer):
            fc1, fc2 = (tensors.get(f"blk.{i}.{part}.weight") for part in ("fc1", "fc2"))
            if (fc1 is None) != (fc2 is None):
                here, gone = ("fc2", "fc1") if fc1 is None else ("fc1", "fc2")
                raise ModelError(
                    f"tensor blk.{i}.{gone}.weight is missing; blk.{i}.{here}.weight, the other "
                    "half of the predictor, is there"
                )
            if fc1 is not None and fc2 is not None and fc1[0] != fc2[1]:
                raise ModelError(
                    f"tensor blk.{i}.fc2.weight has shape {list(fc2)}, expected "
                    f"{[self.hp.n_ff, fc1[0]]} for blk.{i}.fc1.weight of rank {fc1[0]}"
                )
            for part in ("gate", "up", "down"):
                if (name := f"blk.{i}.ffn_{part}.bias") in tensors:
                    raise ModelError(f"tensor {name}: {self.name} has no biases there")

    def feed_forward(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("ffn"):
            h = self.norm(at, "ffn_norm", x)
            up_act = "relu" if self.relu_up else ""
            return residual(at, x, ffn(at, h, act="relu", up_act=up_act))
