"""OPT: LayerNorms, biases, ReLU, and learned embeddings of positions, of which a table may begin
with two that no token has. The down matrix may be transposed, as PowerInfer has it.

Source: Zhang et al. 2022 (arXiv 2205.01068). The 350M model, whose norms come after, is another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gguflow.engine.graph import Graph, Tensor

from .base import WeightSpec
from .batch import Batch
from .blocks import LAYER_NORM
from .forms import Sequential
from .keys import ModelError
from .relu import ReluLayers

UNUSED = 2  # rows at the beginning of the published tables
POSITIONS = "position_embd.weight"


class Opt(ReluLayers, Sequential):
    name = "opt"
    norm = LAYER_NORM
    rope_mode = ""
    gated = False
    by_neuron = False

    def weights(self) -> Iterator[WeightSpec]:
        yield from super().weights()
        yield WeightSpec(POSITIONS, (-1, self.hp.n_embd))

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        super().check(tensors)
        n, known = tensors[POSITIONS][0], self.hp.n_ctx_train
        if n not in (known, known + UNUSED):
            raise ModelError(
                f"tensor {POSITIONS} has {n} rows, expected {known} or {known + UNUSED}"
            )

    @property
    def most_ctx(self) -> int | None:
        return self.hp.n_ctx_train

    def build(self, g: Graph, w: Mapping[str, Tensor], batch: Batch) -> Tensor:
        table = w[POSITIONS]
        unused = table.shape[0] - self.hp.n_ctx_train
        if unused > 0:
            w = {**w, POSITIONS: g.slice(table, 0, unused, table.shape[0])}
        return super().build(g, w, batch)
