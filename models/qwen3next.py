"""Qwen3-Next: gated delta nets, and attention with a gate over its output in every fourth layer;
part of a head is rotated; experts and a shared one with a gate.

Source: Qwen team 2025, "Qwen3-Next".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Tensor

from .base import WeightSpec
from .batch import CacheLayer, StateLayer
from .blocks import (
    Site,
    attention,
    attention_weights,
    cache_layer,
    delta_net,
    delta_net_weights,
    expert_weights,
    ffn_weights,
    head_norm_weights,
    recurrent_cache,
    residual,
)
from .forms import Sequential
from .hparams import HParams
from .keys import Keys
from .parts import Experts, Recurrent, read_recurrent


class Qwen3Next(Sequential):
    name = "qwen3next"
    rope_mode = "neox"
    routing: ClassVar[Experts | None] = Experts(score="softmax", norm=True)
    joined: ClassVar[bool] = True  # see `delta_net_weights`
    tiled: ClassVar[bool] = False  # see `delta_net`

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Self:
        k = Keys(metadata, cls.name)
        hp = super().from_metadata(metadata, n_vocab).hp
        every = k.integer("full_attention_interval", 4, least=1)
        flags = tuple((i + 1) % every > 0 for i in range(hp.n_layer))
        if k.find("attention.recurrent_layers") is not None:
            flags = k.flags("attention.recurrent_layers", k.integer("block_count"))
        recurrent = read_recurrent(k)
        layers = tuple(recurrent if flag else None for flag in flags[: hp.n_layer])
        return cls(replace(hp, recurrent=recurrent, by_layer={**hp.by_layer, "recurrent": layers}))

    def keys(self) -> Iterator[tuple[str, Any]]:
        yield from super().keys()
        flags = [layer is not None for layer in self.hp.by_layer["recurrent"]]
        yield f"{self.hp.arch}.attention.recurrent_layers", flags

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        yield from self.norm.weights("attn_norm", hp.n_embd)
        if hp.recurrent is not None:
            yield from delta_net_weights(hp, joined=self.joined)
        else:
            yield from attention_weights(hp, gated=True)
            yield from head_norm_weights(hp.head_dim, hp.head_dim)
        yield from self.norm.weights("post_attention_norm", hp.n_embd)
        if hp.experts is None:
            yield from ffn_weights(hp, gated=True)
        else:
            yield from expert_weights(hp, hp.experts)

    def cache(self, i: int) -> CacheLayer | StateLayer:
        hp = self.layer_hparams(i)
        return cache_layer(hp) if hp.recurrent is None else recurrent_cache(hp)

    def attend(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("attn" if at.hp.recurrent is None else "delta"):
            h = self.norm(at, "attn_norm", x)
            if at.hp.recurrent is None:
                return residual(at, x, attention(at, h, rope_mode=self.rope_mode, gated=True))
            return residual(at, x, delta_net(at, h, tiled=self.tiled))

    def feed_forward(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("ffn"):
            return residual(at, x, self.mix(at, self.norm(at, "post_attention_norm", x)))

    @classmethod
    def tiny(cls) -> HParams:
        r = Recurrent(4, 4, 16, 2, 24)
        experts = Experts(6, 3, 32, 32)
        return replace(
            super().tiny(), n_layer=3, rope_dims=8, recurrent=r, experts=experts,
            by_layer={"recurrent": (r, None, r)},
        )  # fmt: skip
