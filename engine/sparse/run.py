"""SparseRun: how the feed-forward layers of a ReLU model are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["predict", "exact", "off"]


@dataclass(frozen=True)
class SparseRun:
    """What a graph is built for, beside `Batch`.

    mode: "predict" skips the neurons that the predictor scores below the threshold; "exact"
        computes every gate and skips the rest of those that ReLU sets to zero (LEAST_POSITIVE of
        engine.graph); "off" skips none.
    threshold: of the predictor's scores, for all layers or one a layer; None for the model's own.
    n_gpu: neurons each layer keeps packed on the device, by layer; empty for no split, when a layer
        runs as a whole where its weights are.
    """

    mode: Mode
    threshold: float | tuple[float, ...] | None = None
    n_gpu: tuple[int, ...] = ()

    def layer_threshold(self, i: int, default: float | tuple[float, ...]) -> float:
        """The threshold of layer `i`; default: the model's own."""
        chosen = default if self.threshold is None else self.threshold
        return chosen[i] if isinstance(chosen, tuple) else chosen
