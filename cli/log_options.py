"""How much is told, and where it goes besides standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from argparse import Action, ArgumentParser, Namespace
from pathlib import Path
from typing import Any, TextIO

from gguflow.engine.opened import NONBLOCKING

from .errors import UsageError
from .options_values import whole

# llama.cpp's levels: 1 errors, 2 warnings, 3 what is done, 4 and 5 more of it.
_QUIET, _VERBOSE = 1, 4


def add_verbosity(p: ArgumentParser) -> None:
    """-q and -v."""
    g = p.add_mutually_exclusive_group()
    g.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    g.add_argument(
        "-v",
        "--verbose",
        "--log-verbose",
        action="store_true",
        help="say what runs where and in how many bytes",
    )


def add_log(p: ArgumentParser) -> None:
    """--log-file, and llama.cpp's names for -q and -v."""
    p.add_argument(
        "--log-file", metavar="FILE", help="what standard error is told goes into this file too"
    )
    p.add_argument("--log-disable", dest="quiet", action="store_true", help="as -q")
    p.add_argument(
        "-lv",
        "--verbosity",
        "--log-verbosity",
        dest="verbose",
        type=whole(0),
        action=_Level,
        default=False,
        metavar="N",
        help=f"up to {_QUIET}: as -q, from {_VERBOSE} on: as -v",
    )


class _Level(Action):
    """A level in place of -q and -v; the last one given counts."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        namespace.quiet, namespace.verbose = values <= _QUIET, values >= _VERBOSE


class _Both:
    """A stream that writes into a file what it is told, but for what moves a terminal's cursor:
    progress bars."""

    def __init__(self, stream: TextIO, file: TextIO) -> None:
        self.stream, self.file = stream, file

    def write(self, text: str) -> int:
        if "\x1b" not in text:
            # A full disk ends the log, not the work, and loggers may write after its end.
            with contextlib.suppress(OSError, ValueError):
                self.file.write(text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _not_waiting(path: str, flags: int) -> int:
    """A pipe that nobody reads is an error, and not waited for."""
    fd = os.open(path, flags | NONBLOCKING, 0o666)
    if NONBLOCKING:
        os.set_blocking(fd, True)
    return fd


def log_to(path: str) -> None:
    """From now on what standard error is told goes to a new file too. Raises UsageError."""
    try:
        place = Path(path).expanduser()
        file = open(place, "w", 1, "utf-8", "replace", opener=_not_waiting)  # noqa: SIM115
    except OSError as e:
        raise UsageError(f"--log-file {path}: {e.strerror or e}") from None
    sys.stderr = _Both(sys.stderr, file)  # type: ignore[assignment]


def end_log() -> None:
    """Close the file, where there is one."""
    if isinstance(sys.stderr, _Both):
        both = sys.stderr
        sys.stderr = both.stream
        with contextlib.suppress(OSError):
            both.file.close()
