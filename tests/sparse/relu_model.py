"""Weights for tiny ReLU models."""

from __future__ import annotations

import numpy as np


def predictors(n_layer: int = 2, n_ff: int = 96, n_embd: int = 64, rank: int = 8) -> dict:
    """Random ones: float32 arrays by name."""
    rng = np.random.default_rng(5)
    arrays = {}
    for i in range(n_layer):
        arrays[f"blk.{i}.fc1.weight"] = rng.standard_normal((rank, n_embd)) / 8
        arrays[f"blk.{i}.fc2.weight"] = rng.standard_normal((n_ff, rank))
    return {name: a.astype(np.float32) for name, a in arrays.items()}
