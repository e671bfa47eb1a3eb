"""StableLM (3B, StableLM 2 1.6B and 12B): LLaMA with LayerNorms; a quarter of a head is rotated. In
the 12B model, attention and feed-forward are of the same normed input, and each query and key head
has a norm of its own.

Source: Bellagente et al. 2024 (arXiv 2402.17834).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Tensor

from .base import WeightSpec
from .blocks import LAYER_NORM, Site, attention, ffn, residual
from .forms import Sequential
from .hparams import HParams
from .keys import Keys


class StableLm(Sequential):
    """parallel: a layer may be without a norm of its feed-forward part, which then sees what
    attention does. Files of sequential models have said so too: their layers have that norm.
    """

    name = "stablelm"
    norm = LAYER_NORM
    rope_mode = "neox"

    def __init__(self, hp: HParams, parallel: bool = False) -> None:
        super().__init__(hp)
        self.parallel = parallel

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Self:
        parallel = Keys(metadata, cls.name).flag("use_parallel_residual", True)
        return cls(super().from_metadata(metadata, n_vocab).hp, parallel)

    def keys(self) -> Iterator[tuple[str, Any]]:
        yield from super().keys()
        yield f"{self.name}.use_parallel_residual", self.parallel

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        for spec in super().layer_weights(hp):
            own = self.parallel and spec.name.startswith("ffn_norm.")
            yield replace(spec, optional=True) if own else spec
        for part, n in (("q", hp.n_head), ("k", hp.n_head_kv)):
            shape = (n, hp.head_dim)
            yield WeightSpec(f"attn_{part}_norm.weight", shape, optional=True, plain=True)

    def layer(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("attn"):
            h = self.norm(at, "attn_norm", x)
            out = attention(at, h, rope_mode=self.rope_mode, head_norm=self.norm)
            x = residual(at, x, out)
        if at.find("ffn_norm.weight") is not None:
            return self.feed_forward(at, x)
        with at.g.scope("ffn"):
            return residual(at, x, ffn(at, at.needed(h), act=self.act))

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), rope_dims=4)
