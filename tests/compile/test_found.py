"""Modules that are found by being there, and a folder that cannot be read."""

from __future__ import annotations

import os
import pkgutil
from importlib import import_module

import pytest

from gguflow.engine.backends.base import backend_names
from gguflow.engine.found import modules_in

PACKAGES = ("engine.ops", "engine.quants", "engine.variants", "engine.backends", "models", "cli")


@pytest.mark.parametrize("name", PACKAGES)
def test_all_are_found(name: str) -> None:
    paths = import_module(f"gguflow.{name}").__path__
    found = [(m.name, m.ispkg) for m in modules_in(paths)]
    assert found == [(m.name, m.ispkg) for m in pkgutil.iter_modules(paths)] and found


@pytest.mark.parametrize("deep", [False, True])
def test_a_folder_that_cannot_be_read_is_not_empty(
    monkeypatch: pytest.MonkeyPatch, deep: bool
) -> None:
    read = os.listdir

    def refused(path: str) -> list[str]:
        if os.path.basename(path) == ("cpu" if deep else "backends"):
            raise OSError(24, "Too many open files", path)
        return read(path)

    monkeypatch.setattr(os, "listdir", refused)
    with pytest.raises(OSError, match="Too many open files"):
        backend_names()
