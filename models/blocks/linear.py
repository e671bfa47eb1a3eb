"""Products with a weight, and what is added to the residual stream."""

from __future__ import annotations

from collections.abc import Iterator

from gguflow.engine.graph import Tensor

from ..base import Part, WeightSpec
from .site import Site


def linear(at: Site, weight: str, x: Tensor, name: str) -> Tensor:
    """W x, plus the bias if there is one. x: f32 [m, k]; returns f32 [m, n]."""
    bias = at.find(f"{weight}.bias")
    w = at.weight(f"{weight}.weight")
    y = at.g.mul_mat(w, x, name=name if bias is None else f"{name}_mm")
    return y if bias is None else at.g.add(y, bias, name=name)


def linear_weights(
    name: str, n: int, k: int, part: tuple[str, int, int] | None = None
) -> Iterator[WeightSpec]:
    """Of a product from k values to n. The bias may be absent.

    part: (tensor, start, n_rows) in which a file may hold the weight beside others: see `Part`.
    """
    for kind, shape in (("weight", (n, k)), ("bias", (n,))):
        rows = part and Part(f"{part[0]}.{kind}", *part[1:])
        yield WeightSpec(f"{name}.{kind}", shape, optional=kind == "bias", part=rows)


def scaled(at: Site, x: Tensor, scale: float, name: str) -> Tensor:
    """x times a number."""
    return x if scale == 1.0 else at.g.scale(x, s=scale, name=name)


def residual(at: Site, x: Tensor, out: Tensor, name: str = "residual") -> Tensor:
    """The residual stream x plus what a block made of it: of the rows that `out` has."""
    out = scaled(at, out, at.hp.residual_scale, f"{name}_scaled")
    if out.shape[0] != x.shape[0]:
        x = at.inp.out(x)
    return at.g.add(out, x, name=name)
