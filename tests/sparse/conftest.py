"""A tiny ReLU model with predictors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

Write = Callable[..., Path]


def predictors(n_layer: int = 2, n_ff: int = 96, n_embd: int = 64, rank: int = 8) -> dict:
    """Random ones: float32 arrays by name."""
    rng = np.random.default_rng(5)
    arrays = {}
    for i in range(n_layer):
        arrays[f"blk.{i}.fc1.weight"] = rng.standard_normal((rank, n_embd)) / 8
        arrays[f"blk.{i}.fc2.weight"] = rng.standard_normal((n_ff, rank))
    return {name: a.astype(np.float32) for name, a in arrays.items()}


@pytest.fixture
def write_relu(tmp_path: Path) -> Write:
    """write_relu(predict=True, **changes of write_tiny) -> path."""

    def write(predict: bool = True, name: str = "relu.gguf", **changes) -> Path:
        weights = predictors() if predict else {}
        return write_tiny(
            tmp_path / name, "relullama", gain=2.0, weights=weights, **changes
        )  # fmt: skip

    return write
