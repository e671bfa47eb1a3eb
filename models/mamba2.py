"""Mamba 2: layers of selective scans, without attention and without feed-forward layers.

Source: Dao and Gu 2024 (arXiv 2405.21060).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Tensor

from .base import WeightSpec
from .batch import StateLayer
from .blocks import Site, recurrent_cache, residual, scan_mixer, scan_mixer_weights
from .decoder import Decoder
from .hparams import HParams
from .keys import Keys
from .parts import Recurrent, read_recurrent, recurrent_keys


class Mamba2(Decoder):
    name = "mamba2"

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Self:
        k = Keys(metadata, cls.name)
        return cls(
            replace(
                cls._plain(),
                n_vocab=n_vocab,
                n_ctx_train=k.integer("context_length", least=1, most=1 << 28),
                n_embd=k.integer("embedding_length", least=1, most=1 << 20),
                n_layer=k.integer("block_count", least=1, most=1 << 12),
                norm_eps=k.real(cls.norm.eps_key, least=0.0),
                recurrent=read_recurrent(k),
            )
        )

    @classmethod
    def _plain(cls) -> HParams:
        """Without what attention and feed-forward layers have."""
        return HParams(cls.name, 96, 64, 64, 2, 0, 1, 1, 0, 0, 1e-5, 0, 0.0)

    def keys(self) -> Iterator[tuple[str, Any]]:
        hp = self.hp
        assert hp.recurrent is not None
        yield "general.architecture", hp.arch
        for key, value in (
            ("context_length", hp.n_ctx_train), ("embedding_length", hp.n_embd),
            ("block_count", hp.n_layer), ("feed_forward_length", 0),
            ("attention.head_count", 0), (self.norm.eps_key, hp.norm_eps),
            ("vocab_size", hp.n_vocab), *recurrent_keys(hp.recurrent),
        ):  # fmt: skip
            yield f"{hp.arch}.{key}", value

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        yield from self.norm.weights("attn_norm", hp.n_embd)
        yield from scan_mixer_weights(hp)

    def cache(self, i: int) -> StateLayer:
        return recurrent_cache(self.hp)

    def layer(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("ssm"):
            return residual(at, x, scan_mixer(at, self.norm(at, "attn_norm", x)))

    @classmethod
    def tiny(cls) -> HParams:
        return replace(cls._plain(), recurrent=Recurrent(4, 8, 16, 2, 24))
