"""What a sparse run computes against what fires, from the very inputs that its layers have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gguflow.engine.graph import Graph
from gguflow.engine.planning import Setup
from gguflow.engine.profile import ActivityRow
from gguflow.engine.taps import Taps

from .run import SparseRun, sparse_run
from .stats import deciding

N_UBATCH = 32  # tokens a run: the gates of all layers are in memory at once


@dataclass(frozen=True)
class WholeGates:
    """A rewrite after SparseRun's: every layer also computes gate (and up, where it decides) in
    full. Their values are put out, then the predictors' scores.

    run: how the layers run. n_ff: neurons of each of n_layer. decide: the products whose sign says
    what fires.
    """

    run: SparseRun
    n_layer: int
    n_ff: int
    decide: tuple[str, ...]
    path: str

    def rewrite(self, g: Graph) -> None:
        norms = {n.name: n for n in g.nodes if n.name.endswith(".ffn.norm")}
        for part in self.decide:
            for i in range(self.n_layer):
                weight, h = g.leaves[f"blk.{i}.ffn_{part}.weight"], norms[f"blk.{i}.ffn.norm"]
                g.mul_mat(weight, h, name=_whole(i, part))
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
                fires = np.logical_and.reduce([out[k] > 0 for k in range(i, n_gates, n)])
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
    run, arch = sparse_run(setup), setup.source.arch
    if run is None or run.mode == "off":
        return None
    return WholeGates(run, arch.hp.n_layer, arch.hp.n_ff, deciding(arch), setup.source.path)


def _whole(i: int, part: str) -> str:
    # A name of the cold half, so that it is computed where the whole matrix lies.
    return f"blk.{i}.ffn.cold_whole_{part}"
