"""Counting how often each neuron fires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gguflow.engine.model import Model
from gguflow.engine.taps import tapped

from ..identity import model_hash
from ..stats import Activations, deciding


def count_activations(
    model: Model,
    chunks: Sequence[Sequence[int]],
    each: Callable[[int], None] | None = None,
) -> Activations:
    """Run token sequences densely through a model and count.

    each: called with the number of tokens so far. Raises ValueError when there are none.
    """
    arch: Any = model.arch
    hp, parts, cuts = model.hp, deciding(arch), np.asarray(arch.cuts, np.float32)
    taps = [f"blk.{i}.ffn.{part}" for part in parts for i in range(hp.n_layer)]
    counts = tuple(np.zeros(hp.n_ff, np.int64) for _ in range(hp.n_layer))
    n_tokens = 0
    for values in tapped(model, taps, chunks, sparse="off"):
        for i, count in enumerate(counts):
            fires = [v > cuts[i] for v in values[i :: hp.n_layer]]
            count += np.logical_and.reduce(fires).sum(0)
        n_tokens += len(values[0])
        if each:
            each(n_tokens)
    if not n_tokens:
        raise ValueError("no tokens to count over")
    return Activations(counts, n_tokens, model_hash(model.source))
