"""Writing a profile to a file; the ending of its name says in which form."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from gguflow.engine.files import whole_file

from .chrome import write_chrome
from .errors import ProfilePathError
from .html import write_html
from .jsonl import write_jsonl
from .record import Recording

EXPORTS: dict[str, Callable[[Recording, TextIO], None]] = {
    ".jsonl": write_jsonl,
    ".json": write_chrome,
    ".html": write_html,
}
_MEANING = ".jsonl (rows), .json (Chrome/Perfetto trace) or .html (page)"


def check_path(path: str | Path) -> Path:
    """`path` if a profile can be written there. Called before any work is done.

    Raises ProfilePathError: unknown ending, a directory, a parent that is missing or read-only.
    """
    path = Path(path)
    if path.suffix.lower() not in EXPORTS:
        raise ProfilePathError(f"cannot write a profile to {path}: the ending must be {_MEANING}")
    if path.is_dir():
        raise ProfilePathError(f"cannot write a profile to {path}: it is a directory")
    if not path.parent.is_dir():
        raise ProfilePathError(f"cannot write a profile to {path}: no directory {path.parent}")
    try:
        # Creating a file is the only sure test: access bits do not show a read-only file system.
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as e:
        raise ProfilePathError(f"cannot write a profile to {path}: {e.strerror}") from None
    return path


def write_profile(recording: Recording, path: str | Path) -> Path:
    """Write `recording` in the form `path` ends in, whole or not at all: a failure leaves what was
    there before. Raises ProfilePathError when the file cannot be written."""
    path = check_path(path)
    try:
        with whole_file(path) as part, part.open("w", encoding="utf-8", newline="\n") as out:
            EXPORTS[path.suffix.lower()](recording, out)
    except OSError as e:
        raise ProfilePathError(f"cannot write a profile to {path}: {e.strerror}") from None
    return path
