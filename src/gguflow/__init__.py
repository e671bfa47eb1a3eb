"""gguflow: a compute-graph inference engine for GGUF language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Model", "Tokenizer", "__version__"]

if TYPE_CHECKING:
    from gguflow.engine.model import Model
    from gguflow.models.tokenizer import Tokenizer


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `gguflow --help` does not pay for the engine.
    if name == "Model":
        from gguflow.engine.model import Model

        return Model
    if name == "Tokenizer":
        from gguflow.models.tokenizer import Tokenizer

        return Tokenizer
    raise AttributeError(f"module 'gguflow' has no attribute {name!r}")
