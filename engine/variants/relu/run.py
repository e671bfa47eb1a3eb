"""SparseRun: how the feed-forward layers of a ReLU model are computed, and the graph rewrite that
makes them so.

A neuron is one row of gate, up and the transposed down matrix, or of the last two where a layer has
no gate; where it does not fire, none of them has to be read. Whether it fires is predicted by two
small matrices from the layer's input (`fc1`, `fc2`; Liu et al. 2023, arXiv 2310.17157), or found
out by computing the gate, or up where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from gguflow.engine.compile import recorded_before, replace_values, sum_before
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.graph import LEAST_POSITIVE, Graph, Tensor, least_above
from gguflow.engine.planning import Setup

from .layers import ReluLayer, gated, relu, relu_layers
from .split import NeuronSplit

Mode = Literal["predict", "exact", "off"]


@dataclass(frozen=True)
class SparseRun:
    """How layers run.

    mode: "predict" skips the neurons that the predictor scores below the threshold; "exact"
        computes every gate (without gates, up) and skips the rest of those that ReLU sets to zero;
        "off" skips none.
    threshold: of the predictor's scores, for all layers or one a layer; None for `own`, the one
        that the predictors were trained for.
    split: the neurons that a device keeps packed; None where a layer runs as a whole where its
        weights are.
    """

    mode: Mode
    threshold: float | tuple[float, ...] | None = None
    own: float | tuple[float, ...] = 0.0
    split: NeuronSplit | None = None

    @property
    def n_gpu(self) -> tuple[int, ...]:
        """Neurons on the device, by layer; empty without a split."""
        return self.split.n_gpu if self.split is not None else ()

    def layer_threshold(self, i: int) -> float:
        """The threshold of layer `i`."""
        chosen = self.own if self.threshold is None else self.threshold
        return chosen[i] if isinstance(chosen, tuple) else chosen

    def rewrite(self, g: Graph) -> None:
        """Compute only active neurons; with a split, in a hot half for the device and a cold one
        for the host."""
        if self.mode != "off":
            sparse = {layer.down: _Sparse(g, layer, self).record() for layer in relu_layers(g)}
            replace_values(g, sparse)


def sparse_run(setup: Setup) -> SparseRun | None:
    """How the layers of a setup run; None for a model that is not of ReLU."""
    return next((r for r in setup.rewrites if isinstance(r, SparseRun)), None)


def with_run(setup: Setup, run: SparseRun) -> Setup:
    """The setup with its layers run in another way, which takes no other weights."""
    rewrites = tuple(run if isinstance(r, SparseRun) else r for r in setup.rewrites)
    return replace(setup, rewrites=rewrites)


@dataclass(frozen=True)
class _Half:
    """Neurons that are computed together. weights: of the layer's parts; bias: of up, by neuron;
    bucket and gpu_idx: which they are, as the sparse ops have it."""

    name: str
    weights: Sequence[Tensor]
    bias: Tensor | None
    bucket: Tensor | None
    gpu_idx: Tensor | None

    @property
    def which(self) -> tuple[Tensor | None, Tensor | None]:
        return self.bucket, self.gpu_idx


@dataclass(frozen=True)
class _Sparse:
    """One layer, made anew beside the dense one."""

    g: Graph
    layer: ReluLayer
    run: SparseRun

    def record(self) -> Tensor:
        g, layer, n_gpu = self.g, self.layer, self.run.n_gpu
        n_hot = n_gpu[layer.index] if n_gpu else 0
        with g.scope(f"blk.{layer.index}"), g.scope("ffn"):
            with recorded_before(g, layer.first):
                idx = self.predict() if self.run.mode == "predict" else None
            whole, bias = self.weights("weight"), self.bias("ffn_up.bias")
            if 0 < n_hot < whole[0].shape[0]:
                hot, bucket = self.weights("hot"), self.weight("gpu_bucket")
                near = _Half("hot", hot, self.bias("ffn_up.bias.hot"), bucket, None)
                far = _Half("cold", whole, bias, None, self.weight("gpu_idx"))
                parts = [partial(self.neurons, half, idx) for half in (near, far)]
                return sum_before(g, layer.down, parts, "merge")
            name = "hot" if n_hot else "cold" if n_gpu else "sparse"
            with recorded_before(g, layer.down):
                return self.neurons(_Half(name, whole, bias, None, None), idx)

    def weight(self, name: str) -> Tensor:
        return self.g.leaves[f"blk.{self.layer.index}.{name}"]

    def weights(self, kind: str) -> list[Tensor]:
        return [self.weight(f"{part}.{kind}") for part in self.layer.parts]

    def bias(self, name: str) -> Tensor | None:
        """Up's, where it has one."""
        return self.weight(name) if self.layer.bias else None

    def predict(self) -> Tensor:
        """Scores f32 [m, n_ff] of the neurons, from the input before the norm."""
        g, x, ids = self.g, self.layer.x, self.layer.picked
        if ids is not None:
            x = g.get_rows(x, ids, name="predict_x")
        hidden = g.mul_mat(self.weight("fc1.weight"), x, name="predict_fc1")
        hidden = g.relu(hidden, name="predict_hidden")
        return g.mul_mat(self.weight("fc2.weight"), hidden, name="predict")

    def neurons(self, half: _Half, idx: Tensor | None) -> Tensor:
        """The layer over the neurons of one half; fusion makes these ops one. Without idx the gate
        itself tells which neurons fire, and without a gate what ReLU makes of up."""
        g, layer, name = self.g, self.layer, half.name
        threshold = self.run.layer_threshold(layer.index)
        *firsts, w_down_t = half.weights
        products: list[Tensor] = []
        scores, least = idx, threshold
        for w, part in zip(firsts, ("gate", "up") if layer.gated else ("up",), strict=True):
            products.append(self.product(w, scores, half, least, f"{name}_{part}"))
            if scores is None:
                scores, least = products[0], least_above(layer.cut)
        if layer.gated:
            gate, up = products
            hidden = gated(g, gate, up, layer.relu_up, layer.cut, name)
        else:
            (up,) = products
            if half.bias is not None:
                up = g.add(up, half.bias, name=f"{name}_up_biased")
            hidden = relu(g, up, layer.cut, f"{name}_act")
            if idx is None:
                scores, least = hidden, LEAST_POSITIVE
        return g.axpy_sparse(w_down_t, hidden, scores, *half.which, threshold=least, name=name)

    def product(
        self, w: Tensor, scores: Tensor | None, half: _Half, threshold: float, name: str
    ) -> Tensor:
        """Of the neurons that score enough, of all of the half's without scores."""
        g, h = self.g, self.layer.h
        if scores is None and half.which == (None, None):
            return g.mul_mat(w, h, name=name)
        n_ff = self.weight("ffn_up.weight").shape[0]  # wherever they are
        return g.mul_mat_sparse(
            w, h, scores, *half.which, threshold=threshold, n_ff=n_ff, name=name
        )
