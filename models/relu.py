"""Families whose feed-forward layers have ReLU, so that most neurons of a layer are zero.

A file may have predictors: two matrices a layer that tell from its input which of its neurons will
fire (Liu et al. 2023, arXiv 2310.17157). The key `relu_threshold` says up to which value ReLU makes
zero, for all layers or one a layer (FATReLU: Kurtz et al. 2020; Song et al. 2024, arXiv
2402.13516).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from gguflow.engine.dataclass import replace
from gguflow.engine.gguf.keys import described
from gguflow.engine.graph import Tensor

from .base import WeightSpec
from .blocks import Site, ffn
from .decoder import Decoder
from .hparams import HParams
from .keys import Keys, ModelError

CUT_KEY = "relu_threshold"


class ReluLayers(Decoder):
    """What such a family is besides the form that it also has: written before it among the bases.

    relu_up: ReLU on up too, beside a gate. cuts: by layer, up to which value ReLU makes zero.
    """

    act = "relu"
    # Files are made to run sparse: the down matrix has one row a neuron.
    by_neuron: ClassVar[bool] = True

    def __init__(self, hp: HParams, relu_up: bool = False) -> None:
        super().__init__(hp)
        self.relu_up = relu_up
        self.cuts: tuple[float, ...] = (0.0,) * hp.n_layer

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Self:
        made = super().from_metadata(metadata, n_vocab)
        k = Keys(metadata, made.hp.arch)
        k.find("sparse_threshold")  # known here, and read where layers are made sparse
        made.cuts = _cuts(k, made.hp.n_layer)
        return made

    def keys(self) -> Iterator[tuple[str, Any]]:
        yield from super().keys()
        if any(self.cuts):
            yield f"{self.hp.arch}.{CUT_KEY}", np.asarray(self.cuts, np.float32)

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        for spec in super().layer_weights(hp):
            name, turned = spec.name, spec.name.replace("ffn_down", "ffn_down_t")
            if name == "ffn_down.weight" and self.by_neuron:
                yield replace(spec, name=turned, shape=spec.shape[::-1], transposed=name)
            elif name.startswith("ffn_down."):
                yield replace(spec, transposed=turned)
            else:
                yield spec
        yield WeightSpec("fc1.weight", (-1, hp.n_embd), optional=True)
        yield WeightSpec("fc2.weight", (hp.n_ff, -1), optional=True)

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        super().check(tensors)
        self.check_predictors(tensors)

    def check_predictors(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        """Raises ModelError for halves of predictors that do not fit, or that are alone."""
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

    def mix(self, at: Site, h: Tensor) -> Tensor:
        """The feed-forward layer of a normed input."""
        up_act = self.act if self.relu_up else ""
        return ffn(at, h, act=self.act, up_act=up_act, cut=self.cuts[at.i])

    def layer_input(self, i: int) -> str:
        """The node that layer i's predictor reads: its feed-forward input before the norm."""
        return f"blk.{i}.attn.residual"


def _cuts(k: Keys, n_layer: int) -> tuple[float, ...]:
    value = k.find(CUT_KEY)
    if value is None:
        return (0.0,) * n_layer
    if hasattr(value, "__len__") and not isinstance(value, str):
        values = k.array(CUT_KEY, n_layer, "fiu", ", one a layer")
        assert values is not None
    else:
        values = np.asarray(value)
    if values.dtype.kind in "fiu":
        with np.errstate(over="ignore"):
            found = np.broadcast_to(values.astype(np.float32), n_layer)
        if (np.isfinite(found) & (found >= 0)).all():
            return tuple(found.tolist())
    raise k.error(CUT_KEY, described(value), "0 or more, or that for each layer")
