"""gguflow: a compute-graph inference engine for GGUF language models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["AsyncEngine", "Engine", "Model", "Request", "Tokenizer", "__version__"]

if TYPE_CHECKING:
    from gguflow.engine.model import Model
    from gguflow.engine.serving.aio import AsyncEngine
    from gguflow.engine.serving.engine import Engine
    from gguflow.engine.serving.request import Request
    from gguflow.models.tokenizer import Tokenizer

_MODULES = {
    "AsyncEngine": "engine.serving.aio",
    "Engine": "engine.serving.engine",
    "Model": "engine.model",
    "Request": "engine.serving.request",
    "Tokenizer": "models.tokenizer",
}


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `gguflow --help` does not pay for the engine.
    if name in _MODULES:
        return getattr(import_module(f"gguflow.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'gguflow' has no attribute {name!r}")
