"""ReLULLaMA: LLaMA with ReLU in place of SiLU, so that most neurons of a layer are zero.

A neuron is one row of gate, up and the transposed down matrix; where it does not fire, none of the
three has to be read. Whether it fires is predicted by two small matrices from the layer's input
(`fc1`, `fc2`; Liu et al. 2023, arXiv 2310.17157), or found out by computing the gate.

PowerInfer's files (Song et al. 2023, arXiv 2312.12456) are this architecture: those that call it
`llama` as it is, those that call it `bamboo` with ReLU on the up projection as well (here the key
`relullama.relu_up`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gguflow.engine.graph import LEAST_POSITIVE, Graph, Tensor
from gguflow.engine.sparse.run import SparseRun

from .base import Batch, HParams, ModelError, WeightSpec, read_hparams
from .llama import Llama

POWERINFER_ARCHS = ("llama", "bamboo")
FFN_PARTS = ("ffn_gate", "ffn_up", "ffn_down_t")  # the matrices with one row a neuron


class ReluLlama(Llama):
    """relu_up: ReLU on the up projection too. threshold: of the predictor's scores below which a
    neuron is skipped, for all layers or one a layer."""

    name = "relullama"

    def __init__(
        self,
        hp: HParams,
        relu_up: bool = False,
        threshold: float | tuple[float, ...] = 0.0,
    ) -> None:
        super().__init__(hp)
        self.relu_up = relu_up
        self.threshold = threshold

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> ReluLlama:
        hp = read_hparams(metadata, n_vocab)
        relu_up = metadata.get(f"{hp.arch}.relu_up", hp.arch == "bamboo")
        if not isinstance(relu_up, bool):
            raise ModelError(f"{hp.arch}.relu_up: expected true or false, found {relu_up!r:.60}")
        return cls(hp, relu_up, read_threshold(metadata, hp))

    def weights(self) -> Iterator[WeightSpec]:
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
        """Gated ReLU feed-forward, dense or over the active neurons; returns x plus its output."""
        with g.scope("ffn"):
            h = self.norm(g, x, w[f"blk.{i}.ffn_norm.weight"], "norm")
            run = batch.sparse
            if run is None or run.mode == "off":
                out = self.dense(g, w, i, h)
            else:
                out = self.sparse(g, w, run, i, x, h)
            return g.add(out, x, name="residual")

    def dense(self, g: Graph, w: Mapping[str, Tensor], i: int, h: Tensor) -> Tensor:
        """Every neuron. h: normed input f32 [m, n_embd]."""
        gate = g.mul_mat(w[f"blk.{i}.ffn_gate.weight"], h, name="gate")
        up = g.mul_mat(w[f"blk.{i}.ffn_up.weight"], h, name="up")
        hidden = self.gated(g, gate, up, "")
        down = w.get(f"blk.{i}.ffn_down.weight")
        if down is not None:
            return g.mul_mat(down, hidden, name="down")
        return g.axpy_sparse(w[f"blk.{i}.ffn_down_t.weight"], hidden, name="down")

    def gated(self, g: Graph, gate: Tensor, up: Tensor, prefix: str) -> Tensor:
        if self.relu_up:
            up = g.relu(up, name=f"{prefix}up_act")
        return g.mul(g.relu(gate, name=f"{prefix}act"), up, name=f"{prefix}reglu")

    def sparse(
        self, g: Graph, w: Mapping[str, Tensor], run: SparseRun, i: int, x: Tensor, h: Tensor
    ) -> Tensor:
        """Active neurons only; with a split, a hot half for the device and a cold one for the host.

        x, h: the layer's input before and after the norm, f32 [m, n_embd].
        """
        idx = self.predict(g, w, i, x) if run.mode == "predict" else None
        threshold = run.layer_threshold(i, self.threshold)
        n_ff = self.hp.n_ff
        n_gpu = run.n_gpu[i] if run.n_gpu else 0
        if 0 < n_gpu < n_ff:
            bucket, gpu_idx = w[f"blk.{i}.gpu_bucket"], w[f"blk.{i}.gpu_idx"]
            hot = [w[f"blk.{i}.{part}.hot"] for part in FFN_PARTS]
            hot_out = self.neurons(g, hot, h, idx, threshold, "hot", bucket, None)
            whole = [w[f"blk.{i}.{part}.weight"] for part in FFN_PARTS]
            cold_out = self.neurons(g, whole, h, idx, threshold, "cold", None, gpu_idx)
            return g.add(hot_out, cold_out, name="merge")
        name = "hot" if n_gpu else "cold" if run.n_gpu else "sparse"
        whole = [w[f"blk.{i}.{part}.weight"] for part in FFN_PARTS]
        return self.neurons(g, whole, h, idx, threshold, name, None, None)

    def predict(self, g: Graph, w: Mapping[str, Tensor], i: int, x: Tensor) -> Tensor:
        """Scores f32 [m, n_ff] of the neurons, from the input before the norm."""
        hidden = g.mul_mat(w[f"blk.{i}.fc1.weight"], x, name="predict_fc1")
        hidden = g.relu(hidden, name="predict_hidden")
        return g.mul_mat(w[f"blk.{i}.fc2.weight"], hidden, name="predict")

    def neurons(
        self, g: Graph, weights: list[Tensor], h: Tensor, idx: Tensor | None, threshold: float,
        name: str, bucket: Tensor | None, gpu_idx: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """The layer over the neurons of one half; fusion makes these ops one. Without idx the gate
        itself tells which neurons fire."""
        w_gate, w_up, w_down_t = weights
        n_ff, others = self.hp.n_ff, (bucket, gpu_idx)
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
        hidden = self.gated(g, gate, up, f"{name}_")
        return g.axpy_sparse(w_down_t, hidden, idx, *others, threshold=threshold, name=name)


def read_threshold(metadata: Mapping[str, Any], hp: HParams) -> float | tuple[float, ...]:
    """`<arch>.sparse_threshold` or PowerInfer's key: a number, or one a layer, not NaN."""
    for key in (f"{hp.arch}.sparse_threshold", "powerinfer.sparse_threshold"):
        value = metadata.get(key)
        if value is None:
            continue
        values = np.asarray(value)
        if values.dtype.kind not in "fiu" or values.ndim > 1 or np.isnan(values).any():
            raise ModelError(f"{key}: expected a number, or one a layer, found {value!r:.60}")
        if values.ndim == 0:
            return float(values)
        if values.size != hp.n_layer:
            raise ModelError(f"{key}: {values.size} values for {hp.n_layer} layers")
        return tuple(float(x) for x in values)
    return 0.0
