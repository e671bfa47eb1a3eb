"""A tiny ReLU model with predictors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from relu_model import predictors
from tiny_model import write_tiny

Write = Callable[..., Path]


@pytest.fixture
def write_relu(tmp_path: Path) -> Write:
    """write_relu(predict=True, **changes of write_tiny) -> path."""

    def write(predict: bool = True, name: str = "relu.gguf", **changes) -> Path:
        weights = predictors() if predict else {}
        return write_tiny(tmp_path / name, "relullama", gain=2.0, weights=weights, **changes)

    return write
