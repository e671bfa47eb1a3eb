"""What a sparse run computes against what fires: a second pass over its tokens, apart from any
timing, with every gate computed beside the layers as they run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gguflow.engine.graph import Graph, Tensor
from gguflow.engine.model import Model
from gguflow.engine.profile import ActivityRow
from gguflow.models.relullama import ReluLlama

from .stats import deciding
from .taps import TappedModel

N_UBATCH = 32  # tokens a run: the gates of all layers are in memory at once


class _WithGates(TappedModel):
    """A model whose sparse layers also compute gate (and up, where it decides) in full."""

    def extend(self, g: Graph, nodes: dict[str, Tensor]) -> None:
        assert isinstance(self.arch, ReluLlama)
        for i in range(self.hp.n_layer):
            norm = nodes[f"blk.{i}.ffn.norm"]
            for part in deciding(self.arch.relu_up):
                name, weight = _whole(i, part), g.leaves[f"blk.{i}.ffn_{part}.weight"]
                nodes[name] = g.mul_mat(weight, norm, name=name)


def _whole(i: int, part: str) -> str:
    # A name of the cold half, so that it is computed where the whole matrix lies.
    return f"blk.{i}.ffn.cold_whole_{part}"


def measure_activity(model: Model, ids: Sequence[int]) -> list[ActivityRow]:
    """How much of each layer fires and is computed over a sequence of tokens.

    The layers run as `model` runs them, so that their inputs are those of the sparse run. Empty for
    a model that runs dense.
    """
    run, arch = model.sparse, model.arch
    if not isinstance(arch, ReluLlama) or run is None or run.mode == "off" or not len(ids):
        return []
    n = model.hp.n_layer
    names = [_whole(i, part) for part in deciding(arch.relu_up) for i in range(n)]
    predicts = run.mode == "predict"
    if predicts:
        names += [f"blk.{i}.ffn.predict" for i in range(n)]
    tapped = _WithGates(model, names, n_ubatch=N_UBATCH, n_ctx=len(ids))
    fired, computed, both = (np.zeros(n) for _ in range(3))
    for values in tapped.tapped([ids]):
        for i in range(n):
            decide = values[i : len(values) - n * predicts : n]
            fires = np.logical_and.reduce([v > 0 for v in decide])
            threshold = np.float32(run.layer_threshold(i, arch.threshold))
            runs = ~(values[-n + i] < threshold) if predicts else fires
            fired[i] += fires.sum()
            computed[i] += runs.sum()
            both[i] += (fires & runs).sum()
    size = len(ids) * model.hp.n_ff
    return [
        ActivityRow(f"blk.{i}", len(ids), fired[i] / size, computed[i] / size,
                    float(both[i] / fired[i]) if fired[i] else None)
        for i in range(n)
    ]  # fmt: skip
