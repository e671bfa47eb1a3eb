"""Models of named shapes with random weights, to measure speed with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from gguflow.engine.graph import DType
from gguflow.models.base import HParams
from gguflow.models.planted import probability
from gguflow.models.shapes import ROWS, metadata, parse_shape, random_rows, shape_bytes

from .source import ModelSource, RepeatedRows, WeightSource


def random_model(text: str) -> ModelSource:
    """A model of a named shape with random weights: `tinyllama-1.1b:Q4_0`.

    Raises ModelError or MixError listing the names there are.
    """
    arch, tensors = parse_shape(text)
    rank = next((shape[0] for name, shape, _ in tensors if name.endswith(".fc1.weight")), 0)
    weights = {
        name: WeightSource(name, dtype, shape, _read(arch.hp, rank, name, shape, dtype), _nothing)
        for name, shape, dtype in tensors
    }
    n_bytes = sum(w.nbytes for w in weights.values())
    known = partial(_probabilities, arch.hp) if rank else None
    return ModelSource(text, dict(metadata(arch)), arch, weights, (), n_bytes, known)


def _read(
    hp: HParams, rank: int, name: str, shape: tuple[int, ...], dtype: DType
) -> Callable[[], np.ndarray]:
    """What reads a weight. rank: of predictors, of models whose weights are not all alike."""
    if rank:
        return partial(shape_bytes, hp, rank, name, shape, dtype)
    n_rows = prod(shape[:-1])
    return RepeatedRows(partial(random_rows, name, shape, dtype), min(n_rows, ROWS), n_rows)


def _nothing() -> None:
    """There are no pages to release."""


def _probabilities(hp: HParams) -> list[np.ndarray]:
    return [probability(hp, i) for i in range(hp.n_layer)]
