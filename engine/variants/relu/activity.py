"""What a sparse run computes against what fires, from the very inputs that its layers have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import Graph
from gguflow.engine.planning import Setup
from gguflow.engine.profile import ActivityRow
from gguflow.engine.taps import Taps

from .layers import layer_input
from .run import SparseRun, sparse_run
from .stats import deciding

N_UBATCH = 32  # tokens a run: the gates of all layers are in memory at once


@dataclass(frozen=True)
class WholeGates:
    """A rewrite after SparseRun's: every layer also computes what decides in full, gate (and up,
    where that does). Their values are put out, then the predictors' scores.

    run: how the layers run. n_ff: neurons of each of n_layer. decide: the products that say what
    fires. cuts: by layer, above which value.
    """

    run: SparseRun
    n_layer: int
    n_ff: int
    decide: tuple[str, ...]
    cuts: tuple[float, ...]
    path: str

    def rewrite(self, g: Graph) -> None:
        inputs = [layer_input(g, i) for i in range(self.n_layer)]
        for part in self.decide:
            for i, h in enumerate(inputs):
                name, weight = _whole(i, part), f"blk.{i}.ffn_{part}"
                bias = g.leaves.get(f"{weight}.bias")
                product = name if bias is None else f"{name}_mm"
                y = g.mul_mat(g.leaves[f"{weight}.weight"], h, name=product)
                if bias is not None:
                    g.add(y, bias, name=name)
        names = [_whole(i, part) for part in self.decide for i in range(self.n_layer)]
        if self.run.mode == "predict":
            names += [f"blk.{i}.ffn.predict" for i in range(self.n_layer)]
        Taps(tuple(names), self.path).rewrite(g)

    def activity(self, outputs: Iterable[Sequence[np.ndarray]]) -> list[ActivityRow]:
        """By layer, what the outputs of a run's pieces come to."""
        n, n_gates = self.n_layer, self.n_layer * len(self.decide)
        fired, computed, both = (np.zeros(n) for _ in range(3))
        n_tokens = 0
        for out in outputs:
            n_tokens += len(out[0])
            for i in range(n):
                cut = np.float32(self.cuts[i])
                fires = np.logical_and.reduce([out[k] > cut for k in range(i, n_gates, n)])
                runs = fires
                if self.run.mode == "predict":
                    runs = ~(out[n_gates + i] < np.float32(self.run.layer_threshold(i)))
                fired[i] += fires.sum()
                computed[i] += runs.sum()
                both[i] += (fires & runs).sum()
        size = n_tokens * self.n_ff
        return [
            ActivityRow(f"blk.{i}", n_tokens, fired[i] / size, computed[i] / size,
                        float(both[i] / fired[i]) if fired[i] else None)
            for i in range(n)
        ]  # fmt: skip


def whole_gates(setup: Setup) -> WholeGates | None:
    """For a model as it is set up; None for one that runs dense."""
    run, hp = sparse_run(setup), setup.source.arch.hp
    if run is None or run.mode == "off":
        return None
    arch: Any = setup.source.arch
    return WholeGates(run, hp.n_layer, hp.n_ff, deciding(arch), arch.cuts, setup.source.path)


def _whole(i: int, part: str) -> str:
    # A name of the cold half, so that it is computed where the whole matrix lies.
    return f"blk.{i}.ffn.cold_whole_{part}"
