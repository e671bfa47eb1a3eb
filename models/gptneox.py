"""GPT-NeoX and Pythia: attention and feed-forward side by side, of a LayerNorm each, or one after
the other; part of a head is rotated; no gate.

Source: Black et al. 2022 (arXiv 2204.06745).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Tensor

from .blocks import LAYER_NORM, Site, attention, ffn, residual
from .forms import Sequential
from .hparams import HParams
from .keys import Keys


class GptNeoX(Sequential):
    """parallel: attention and feed-forward are of the same input."""

    name = "gptneox"
    norm = LAYER_NORM
    rope_mode = "neox"
    act = "gelu_erf"
    gated = False

    def __init__(self, hp: HParams, parallel: bool = True) -> None:
        super().__init__(hp)
        self.parallel = parallel

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Self:
        parallel = Keys(metadata, cls.name).flag("use_parallel_residual", True)
        return cls(super().from_metadata(metadata, n_vocab).hp, parallel)

    def keys(self) -> Iterator[tuple[str, Any]]:
        yield from super().keys()
        yield f"{self.name}.use_parallel_residual", self.parallel

    def layer(self, at: Site, x: Tensor) -> Tensor:
        if not self.parallel:
            return super().layer(at, x)
        with at.g.scope("attn"):
            h = self.norm(at, "attn_norm", x)
            after = residual(at, x, attention(at, h, rope_mode=self.rope_mode))
        with at.g.scope("ffn"):
            h = self.norm(at, "ffn_norm", at.needed(x))
            return residual(at, after, ffn(at, h, act=self.act))

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), rope_dims=4)
