"""What is found by being there: the modules of a package, and its files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from gguflow.engine.dataclass import dataclass


@dataclass(frozen=True)
class Found:
    """A module, or a package, by its name."""

    name: str
    ispkg: bool


def modules_in(paths: Iterable[str]) -> list[Found]:
    """The modules and packages in a package's `__path__`, by name. Raises OSError for a folder that
    cannot be read now, for want of memory or open files say, which `pkgutil.iter_modules` takes for
    an empty one: an op, a backend or a variant would be missing without a word."""
    found = []
    for place in paths:
        for name in sorted(os.listdir(place)):
            stem, dot, kind = name.partition(".")
            path = os.path.join(place, name)
            if kind == "py" and stem != "__init__":
                found.append(Found(stem, False))
            elif not dot and _is_folder(path) and "__init__.py" in os.listdir(path):
                found.append(Found(stem, True))
    return found


def file_of(package: str, *names: str) -> Path:
    """Where a package has a file, or would have it. Of an editable installation a package has two
    folders: its sources, and what was built of them. (`importlib.resources` says the same, and
    takes as long to import as a dozen modules.)"""
    places = [Path(folder, *names) for folder in import_module(package).__path__]
    return next((place for place in places if place.exists()), places[-1])


def _is_folder(path: str) -> bool:
    return stat.S_ISDIR(os.stat(path).st_mode)  # os.path.isdir hides what is wrong
