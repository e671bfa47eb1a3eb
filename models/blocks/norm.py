"""Norms: RMS norm, and LayerNorm with or without bias."""

from __future__ import annotations

from collections.abc import Iterator

from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import Graph, Tensor

from ..base import WeightSpec
from .site import Site


@dataclass(frozen=True)
class Norm:
    """A kind of norm. eps_key: the GGUF key of its epsilon. centred: LayerNorm, which takes the
    mean off and may have a bias."""

    eps_key: str
    centred: bool

    def __call__(self, at: Site, weight: str, x: Tensor, name: str = "norm") -> Tensor:
        """x normed over its last axis, times `{weight}.weight`, plus `{weight}.bias` if any."""
        w, b = at.weight(f"{weight}.weight"), at.find(f"{weight}.bias")
        return self.apply(at.g, x, w, b, at.hp.norm_eps, name)

    def apply(
        self, g: Graph, x: Tensor, w: Tensor, b: Tensor | None, eps: float, name: str
    ) -> Tensor:
        if self.centred and len(w.shape) == 1:
            return g.layer_norm(x, w, b, eps=eps, name=name)
        if self.centred:  # a weight for every head
            return g.mul(g.layer_norm(x, eps=eps, name=f"{name}_each"), w, name=name)
        return g.mul(g.rms_norm(x, eps=eps, name=f"{name}_rms"), w, name=name)

    def weights(self, name: str, n: int) -> Iterator[WeightSpec]:
        """Of a norm over n values."""
        yield WeightSpec(f"{name}.weight", (n,))
        if self.centred:
            yield WeightSpec(f"{name}.bias", (n,), optional=True)


RMS_NORM = Norm("attention.layer_norm_rms_epsilon", centred=False)
LAYER_NORM = Norm("attention.layer_norm_epsilon", centred=True)
