"""Checkpoints to convert."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a checkpoint, with a tokenizer."""

    def copy(name: str) -> Path:
        to = tmp_path / name
        shutil.copytree(DATA / name, to)
        if not (to / "tokenizer.json").exists():
            shutil.copy(DATA / "llama" / "tokenizer.json", to)
        return to

    return copy
