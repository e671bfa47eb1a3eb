"""SparseRun: how the feed-forward layers of a ReLU model are computed, and the graph rewrite that
makes them so.

A neuron is one row of gate, up and the transposed down matrix; where it does not fire, none of the
three has to be read. Whether it fires is predicted by two small matrices from the layer's input
(`fc1`, `fc2`; Liu et al. 2023, arXiv 2310.17157), or found out by computing the gate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from gguflow.engine.compile import recorded_before, replace_values, sum_before
from gguflow.engine.graph import LEAST_POSITIVE, Graph, Tensor
from gguflow.engine.planning import Setup

from .split import NeuronSplit

Mode = Literal["predict", "exact", "off"]
FFN_PARTS = ("ffn_gate", "ffn_up", "ffn_down_t")  # the matrices with one row a neuron

_DOWN = re.compile(r"(?P<layer>blk\.(?P<index>\d+))\.ffn_down_t\.weight")


@dataclass(frozen=True)
class SparseRun:
    """How layers run.

    mode: "predict" skips the neurons that the predictor scores below the threshold; "exact"
        computes every gate and skips the rest of those that ReLU sets to zero; "off" skips none.
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
            sparse = {layer.down: _Sparse(g, layer, self).record() for layer in gated_layers(g)}
            replace_values(g, sparse)


def gated(g: Graph, gate: Tensor, up: Tensor, relu_up: bool, name: str) -> Tensor:
    """The neurons f32 [m, n], called `<name>_reglu`."""
    if relu_up:
        up = g.relu(up, name=f"{name}_up_act")
    return g.mul(g.relu(gate, name=f"{name}_act"), up, name=f"{name}_reglu")


def sparse_run(setup: Setup) -> SparseRun | None:
    """How the layers of a setup run; None for a model that is not of ReLU."""
    return next((r for r in setup.rewrites if isinstance(r, SparseRun)), None)


def with_run(setup: Setup, run: SparseRun) -> Setup:
    """The setup with its layers run in another way, which takes no other weights."""
    rewrites = tuple(run if isinstance(r, SparseRun) else r for r in setup.rewrites)
    return replace(setup, rewrites=rewrites)


@dataclass(frozen=True)
class GatedLayer:
    """relu(gate h) * up h, times down: a layer as it was recorded.

    index: of the layer. x, h: its input before and after the norm, f32 [m, n_embd]. first: the
    first node to replace, down the last one. relu_up: whether up goes through a ReLU as well.
    """

    index: int
    x: Tensor
    h: Tensor
    first: Tensor
    down: Tensor
    relu_up: bool


def gated_layers(g: Graph) -> list[GatedLayer]:
    """The feed-forward layers whose down matrix has one row a neuron. Raises ValueError naming a
    layer that is not made of norm, gate, up and down."""
    return list(_found(g))


def _found(g: Graph) -> Iterator[GatedLayer]:
    for node in g.nodes:
        weight = node.srcs[0] if node.op == "axpy_sparse" else None
        found = _DOWN.fullmatch(weight.name) if weight is not None else None
        if not found:
            continue
        act, up = _sources(node.srcs[1], "mul") or (None, None)
        relu_up = up is not None and up.op == "relu"
        gate, up = (_source(act, "relu"), _source(up, "relu") if relu_up else up)
        h, other = (_sources(t, "mul_mat")[-1:] for t in (gate, up))
        rms = _source(h[0], "mul") if h else None
        x = _source(rms, "rms_norm")
        if gate is None or up is None or h != other or not h or x is None:
            raise ValueError(f"{node.name}: not a layer of norm, gate with ReLU, up and down")
        yield GatedLayer(int(found["index"]), x, h[0], gate, node, relu_up)


def _sources(t: Tensor | None, op: str) -> list[Tensor]:
    return t.live_srcs() if t is not None and t.op == op else []


def _source(t: Tensor | None, op: str) -> Tensor | None:
    return next(iter(_sources(t, op)), None)


@dataclass(frozen=True)
class _Sparse:
    """One layer, made anew beside the dense one."""

    g: Graph
    layer: GatedLayer
    run: SparseRun

    def record(self) -> Tensor:
        g, layer, n_gpu = self.g, self.layer, self.run.n_gpu
        n_hot = n_gpu[layer.index] if n_gpu else 0
        with g.scope(f"blk.{layer.index}"), g.scope("ffn"):
            with recorded_before(g, layer.first):
                idx = self.predict() if self.run.mode == "predict" else None
            whole = self.weights("weight")
            if 0 < n_hot < whole[0].shape[0]:
                hot, bucket = self.weights("hot"), self.weight("gpu_bucket")
                parts = [
                    partial(self.neurons, hot, idx, "hot", bucket, None),
                    partial(self.neurons, whole, idx, "cold", None, self.weight("gpu_idx")),
                ]
                return sum_before(g, layer.down, parts, "merge")
            name = "hot" if n_hot else "cold" if n_gpu else "sparse"
            with recorded_before(g, layer.down):
                return self.neurons(whole, idx, name, None, None)

    def weight(self, name: str) -> Tensor:
        return self.g.leaves[f"blk.{self.layer.index}.{name}"]

    def weights(self, kind: str) -> list[Tensor]:
        return [self.weight(f"{part}.{kind}") for part in FFN_PARTS]

    def predict(self) -> Tensor:
        """Scores f32 [m, n_ff] of the neurons, from the input before the norm."""
        g = self.g
        hidden = g.mul_mat(self.weight("fc1.weight"), self.layer.x, name="predict_fc1")
        hidden = g.relu(hidden, name="predict_hidden")
        return g.mul_mat(self.weight("fc2.weight"), hidden, name="predict")

    def neurons(
        self, weights: Sequence[Tensor], idx: Tensor | None, name: str, bucket: Tensor | None,
        gpu_idx: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """The layer over the neurons of one half; fusion makes these ops one. Without idx the gate
        itself tells which neurons fire."""
        g, h = self.g, self.layer.h
        w_gate, w_up, w_down_t = weights
        threshold, n_ff = self.run.layer_threshold(self.layer.index), self.weight_rows()
        others = bucket, gpu_idx
        if idx is None and bucket is None and gpu_idx is None:
            gate = g.mul_mat(w_gate, h, name=f"{name}_gate")
        else:
            gate = g.mul_mat_sparse(
                w_gate, h, idx, *others, threshold=threshold, n_ff=n_ff, name=f"{name}_gate"
            )
        if idx is None:
            idx, threshold = gate, LEAST_POSITIVE
        up = g.mul_mat_sparse(
            w_up, h, idx, *others, threshold=threshold, n_ff=n_ff, name=f"{name}_up"
        )
        hidden = gated(g, gate, up, self.layer.relu_up, name)
        return g.axpy_sparse(w_down_t, hidden, idx, *others, threshold=threshold, name=name)

    def weight_rows(self) -> int:
        """Neurons of the layer, wherever they are."""
        return self.weight("ffn_gate.weight").shape[0]
