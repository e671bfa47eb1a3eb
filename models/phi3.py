"""Phi-3: LLaMA whose files hold q, k and v as one matrix, and gate and up as one. LongRoPE: factors
of the frequencies of rope, other ones for contexts longer than the model was first trained with.

Sources: Abdin et al. 2024 (arXiv 2404.14219); Ding et al. 2024 (arXiv 2402.13753).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from gguflow.engine.graph import Graph, Tensor
from gguflow.engine.plan_key import PAGE

from .base import WeightSpec
from .batch import Batch
from .hparams import HParams
from .keys import Keys, ModelError
from .llama import Llama

LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


class Phi3(Llama):
    """n_ctx_short: up to so many tokens of context the short factors hold."""

    name = "phi3"
    rope_mode = "neox"
    routing = None

    def __init__(self, hp: HParams, n_ctx_short: int = 0) -> None:
        super().__init__(hp)
        self.n_ctx_short = n_ctx_short or hp.n_ctx_train

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Self:
        short = Keys(metadata, cls.name).integer("rope.scaling.original_context_length", 0)
        return cls(super().from_metadata(metadata, n_vocab).hp, short)

    def weights(self) -> Iterator[WeightSpec]:
        yield from super().weights()
        for name in (LONG, SHORT):
            yield WeightSpec(name, (self.hp.rope_dims // 2,), optional=True)

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        super().check(tensors)
        if (LONG in tensors) != (SHORT in tensors):
            there, gone = (LONG, SHORT) if LONG in tensors else (SHORT, LONG)
            raise ModelError(f"tensor {gone} is missing; {there} is there")

    def build(self, g: Graph, w: Mapping[str, Tensor], batch: Batch) -> Tensor:
        if LONG in w:
            is_long = batch.cache.n_entries * PAGE > self.n_ctx_short
            w = {**w, "rope_freqs.weight": w[LONG if is_long else SHORT]}
        return super().build(g, w, batch)
