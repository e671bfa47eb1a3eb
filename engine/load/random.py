"""Models of named shapes with random weights, to measure speed with."""

from __future__ import annotations

from functools import partial

import numpy as np

from gguflow.models.base import HParams
from gguflow.models.planted import probability
from gguflow.models.shapes import metadata, parse_shape, shape_bytes

from .source import ModelSource, WeightSource


def random_model(text: str) -> ModelSource:
    """A model of a named shape with random weights: `tinyllama-1.1b:Q4_0`.

    Raises ModelError or MixError listing the names there are.
    """
    arch, tensors = parse_shape(text)
    rank = next((shape[0] for name, shape, _ in tensors if name.endswith(".fc1.weight")), 0)
    weights = {
        name: WeightSource(
            name, dtype, shape, partial(shape_bytes, arch.hp, rank, name, shape, dtype),
            lambda: None,
        )
        for name, shape, dtype in tensors
    }  # fmt: skip
    n_bytes = sum(w.nbytes for w in weights.values())
    known = partial(_probabilities, arch.hp) if rank else None
    return ModelSource(text, dict(metadata(arch)), arch, weights, (), n_bytes, known)


def _probabilities(hp: HParams) -> list[np.ndarray]:
    return [probability(hp, i) for i in range(hp.n_layer)]
