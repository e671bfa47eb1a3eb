"""The models that ship with the package."""

from __future__ import annotations

from pathlib import Path

from gguflow.engine.found import file_of
from gguflow.models.base import ModelError


def bundled_folder() -> Path:
    """Where they lie."""
    return file_of("gguflow.models", "bundled")


def bundled_model() -> Path:
    """The dense one. Raises ModelError where this installation has none."""
    found = sorted(p for p in bundled_folder().glob("*.gguf") if "relu" not in p.name)
    if not found:
        raise ModelError("this installation comes without a bundled model: name a file")
    return found[0]


def draft_path(name: str | Path) -> Path:
    """The file of a draft model; "bundled" is a smaller one than the dense model, with the same
    vocabulary. Raises ModelError where this installation has none."""
    if name != "bundled":
        return Path(name)
    found = sorted((bundled_folder() / "drafts").glob("*.gguf"))
    if not found:
        raise ModelError("this installation comes without a bundled draft: name a file")
    return found[0]
