"""Decoder: what every family's forward pass has in common, around its layers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Graph, Tensor

from .base import Architecture, WeightSpec
from .batch import Batch, CacheLayer, StateLayer
from .blocks import RMS_NORM, Norm, Site, cache_layer, embed, end_weights, logits
from .hparams import HParams, hparam_keys, read_hparams
from .keys import ModelError
from .parts import Experts

_OF_LAYER = re.compile(r"blk\.(\d{1,9})\.")
DERIVED = ("attn_rot_embd.weight", "attn_rot_embd")  # follows from rope's keys


class Decoder(Architecture):
    """Embeddings, layers, a norm and a head.

    A family provides `layer` and `layer_weights`, or has them from one of `forms`.
    """

    norm: ClassVar[Norm] = RMS_NORM
    rope_mode: ClassVar[str] = "norm"  # turns pairs: "norm" adjacent, "neox" half a head apart
    act: ClassVar[str] = "silu"  # of feed-forward layers
    gated: ClassVar[bool] = True  # whether they have a gate
    full_every: ClassVar[int] = 0  # of layers with a sliding window, every n-th sees all tokens
    reads: ClassVar[Mapping[str, float]] = {}  # numbers that the family has: see `read_hparams`
    routing: ClassVar[Experts | None] = None  # of families with experts: the same

    def layer(self, at: Site, x: Tensor) -> Tensor:
        """Record a layer over the residual stream x, f32 [n_tokens, n_embd]; returns the new one,
        after the last layer's attention of the rows to output alone."""
        raise NotImplementedError

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        """What a layer with these hyperparameters reads, named without its number."""
        raise NotImplementedError

    # -- what some families change -----------------------------------------------------------------

    def layer_hparams(self, i: int) -> HParams:
        """The hyperparameters of layer i."""
        hp = self.hp.layer(i)
        e = hp.experts
        if e is not None and (i < e.n_dense or (i + 1) % e.every):
            hp = replace(hp, experts=None)
        told = "sliding_window" in self.hp.by_layer
        if self.full_every and not told and (i + 1) % self.full_every == 0:
            return replace(hp, sliding_window=0)
        return hp

    def embed(self, at: Site) -> Tensor:
        return embed(at, scale=at.hp.embd_scale)

    def logits(self, at: Site, x: Tensor) -> Tensor:
        return logits(at, x, norm=self.norm, scale=at.hp.logit_scale)

    # -- what an architecture is asked -------------------------------------------------------------

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Self:
        return cls(read_hparams(metadata, n_vocab, cls.norm.eps_key, cls.reads, cls.routing))

    def keys(self) -> Iterator[tuple[str, Any]]:
        yield from hparam_keys(self.hp, self.norm.eps_key, self.reads)

    def weights(self) -> Iterator[WeightSpec]:
        yield from end_weights(self.hp, self.norm)
        for i in range(self.hp.n_layer):
            for spec in self.layer_weights(self.layer_hparams(i)):
                yield spec.of_layer(i)

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        known = set[str]()
        for spec in self.weights():
            known |= {spec.name, spec.transposed, spec.part.of if spec.part else ""}
        for i in range(self.hp.n_layer):
            known |= {f"blk.{i}.{name}" for name in DERIVED}
        for name in tensors:
            found = _OF_LAYER.match(name)
            if found and int(found[1]) < self.hp.n_layer and name not in known:
                raise ModelError(
                    f"tensor {name}: {self.name} has no such weight, and without it the results "
                    "would be others"
                )

    def cache(self, i: int) -> CacheLayer | StateLayer | None:
        return cache_layer(self.layer_hparams(i))

    def build(self, g: Graph, w: Mapping[str, Tensor], batch: Batch) -> Tensor:
        ends = Site(g, w, batch.inputs(g, self.hp.causal), self.hp)
        x = self.embed(ends)
        for i in range(self.hp.n_layer):
            with g.scope(f"blk.{i}"):
                x = self.layer(replace(ends, hp=self.layer_hparams(i), i=i), x)
        return self.logits(ends, x)

    @classmethod
    def tiny(cls) -> HParams:
        return HParams(
            cls.name, n_vocab=96, n_ctx_train=64, n_embd=64, n_layer=2, n_ff=96, n_head=4,
            n_head_kv=2, head_dim=16, head_dim_v=16, norm_eps=1e-5, rope_dims=16, rope_base=1e4,
        )  # fmt: skip
