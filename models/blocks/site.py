"""Where blocks are recorded."""

from __future__ import annotations

from collections.abc import Mapping

from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import Graph, Tensor

from ..batch import Inputs
from ..hparams import HParams


@dataclass(frozen=True)
class Site:
    """A graph and a run's inputs, with the weights and hyperparameters of layer i; i = -1: of the
    model's two ends."""

    g: Graph
    weights: Mapping[str, Tensor]
    inp: Inputs
    hp: HParams
    i: int = -1

    def find(self, name: str) -> Tensor | None:
        """The layer's weight `name`, if it has one."""
        return self.weights.get(name if self.i < 0 else f"blk.{self.i}.{name}")

    def weight(self, name: str) -> Tensor:
        """The layer's weight `name`."""
        return self.weights[name if self.i < 0 else f"blk.{self.i}.{name}"]

    def needed(self, x: Tensor) -> Tensor:
        """The rows of x that matter past the layer's keys and values: in the last layer only those
        to output, unless they are picked later."""
        is_last = self.i == self.hp.n_layer - 1 and not self.inp.picks_last
        return self.inp.out(x) if is_last else x
