"""ReLULLaMA: LLaMA with ReLU in place of SiLU, so that most neurons of a layer are zero.

PowerInfer's files (Song et al. 2023, arXiv 2312.12456) are this architecture: those that call it
`llama` as it is, those that call it `bamboo` with ReLU on the up projection as well (here the key
`relullama.relu_up`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gguflow.engine.graph import Graph, Tensor

from .base import HParams, ModelError, WeightSpec, read_hparams
from .batch import Batch
from .llama import Llama


class ReluLlama(Llama):
    """relu_up: ReLU on the up projection too."""

    name = "relullama"

    def __init__(self, hp: HParams, relu_up: bool = False) -> None:
        super().__init__(hp)
        self.relu_up = relu_up

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> ReluLlama:
        hp = read_hparams(metadata, n_vocab)
        relu_up = metadata.get(f"{hp.arch}.relu_up", hp.arch == "bamboo")
        if not isinstance(relu_up, bool):
            raise ModelError(f"{hp.arch}.relu_up: expected true or false, found {relu_up!r:.60}")
        return cls(hp, relu_up)

    def weights(self) -> Iterator[WeightSpec]:
        """Llama's, with the down matrix transposed, and the predictors that a file may have: two
        matrices that tell from a layer's input which of its neurons will fire."""
        hp = self.hp
        for spec in super().weights():
            if spec.name.endswith(".ffn_down.weight"):
                name = spec.name.replace("ffn_down", "ffn_down_t")
                yield WeightSpec(name, (hp.n_ff, hp.n_embd), transposed=spec.name)
            elif not (".ffn_" in spec.name and spec.name.endswith(".bias")):
                yield spec
        for i in range(hp.n_layer):
            yield WeightSpec(f"blk.{i}.fc1.weight", (-1, hp.n_embd), optional=True)
            yield WeightSpec(f"blk.{i}.fc2.weight", (hp.n_ff, -1), optional=True)

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

    def ffn(self, g: Graph, w: Mapping[str, Tensor], batch: Batch, i: int, x: Tensor) -> Tensor:
        """Gated ReLU feed-forward; returns x plus its output."""
        with g.scope("ffn"):
            h = self.norm(g, x, w[f"blk.{i}.ffn_norm.weight"], "norm")
            gate = g.mul_mat(w[f"blk.{i}.ffn_gate.weight"], h, name="gate")
            up = g.mul_mat(w[f"blk.{i}.ffn_up.weight"], h, name="up")
            if self.relu_up:
                up = g.relu(up, name="up_act")
            hidden = g.mul(g.relu(gate, name="act"), up, name="reglu")
            down = w.get(f"blk.{i}.ffn_down.weight")
            if down is not None:
                out = g.mul_mat(down, hidden, name="down")
            else:
                out = g.axpy_sparse(w[f"blk.{i}.ffn_down_t.weight"], hidden, name="down")
            return g.add(out, x, name="residual")
