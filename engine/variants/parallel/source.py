"""A model's weights in parts: each is read from the file as it is loaded, and nothing beside it."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from gguflow.engine.dataclass import replace
from gguflow.engine.load import ModelSource, WeightSource

from .cuts import Cut, Cuts, part_name


def with_parts(source: ModelSource, cuts: Cuts) -> ModelSource:
    """The model with the parts of its cut weights beside the whole ones."""
    weights = dict(source.weights)
    for name, cut in cuts.weights.items():
        for k in range(cuts.n):
            part = _part(source.weights[name], cut, k)
            weights[part.name] = part
    return replace(source, weights=weights)


def with_own_head(source: ModelSource) -> ModelSource:
    """The model with an output head of its own where the embeddings are that too: one is for the
    first device, the other for the last, in the layout that its products want."""
    name = "output.weight"
    if name in source.weights or all(spec.name != name for spec in source.arch.weights()):
        return source
    head = replace(source.weights["token_embd.weight"], name=name)
    return replace(source, weights={**source.weights, name: head})


def _part(w: WeightSource, cut: Cut, k: int) -> WeightSource:
    shape = cut.shape(w.shape, k)
    return replace(w, name=part_name(w.name, k), shape=shape, read=partial(_read, w, cut, k))


def _read(w: WeightSource, cut: Cut, k: int) -> np.ndarray:
    """The bytes of a part, dense; rows of a matrix lie in one piece and are not copied."""
    last = len(w.shape) - 1
    unit = w.dtype.block if cut.axis == last else 1
    start, stop = (b // unit for b in cut.bounds[k : k + 2])
    # Outer dimensions, the one that is cut, and the bytes of one step along it.
    outer = prod(w.shape[: cut.axis])
    n = w.shape[cut.axis] // unit
    raw = w.read().reshape(outer, n, -1)
    return np.ascontiguousarray(raw[:, start:stop]).reshape(-1)
