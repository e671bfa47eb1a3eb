"""The numpy backend. `create` is what `find_backend("numpy")` calls."""

from __future__ import annotations

from typing import Any

from gguflow.engine.backends.host import read, window, write

from .backend import NumpyBackend, NumpyProgram, buffers_of
from .evaluate import evaluate, run_node

__all__ = ["NumpyBackend", "NumpyProgram", "buffers_of", "create", "evaluate", "read", "run_node",
           "window", "write"]  # fmt: skip


def create(options: dict[str, Any]) -> NumpyBackend:
    """There are no options."""
    return NumpyBackend()
