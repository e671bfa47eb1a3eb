"""The prompt, from wherever the user gives it."""

from __future__ import annotations

import codecs
import os
import re
import stat
import sys
from argparse import Namespace
from pathlib import Path

from gguflow.engine.opened import open_file

from .errors import UsageError

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"""\\(?:([nrt'"\\])|x([0-9a-fA-F]{2}))""")


def unescape(text: str) -> str:
    r"""Replace \n, \r, \t, \', \", \\ and \xHH, as llama.cpp does; other backslashes stay.

    Neighbouring \xHH are the bytes of UTF-8 text; those that are no UTF-8 become U+FFFD.
    """
    raw = text.encode("utf-8", "surrogateescape").decode("latin-1")
    done = _ESCAPE.sub(lambda m: _ESCAPES[m[1]] if m[1] else chr(int(m[2], 16)), raw)
    return done.encode("latin-1").decode("utf-8", "replace")


MOST_BYTES = 64 << 20  # of a text; no context holds more


def read_stdin() -> str:
    """All of standard input. Raises UsageError for what is not UTF-8, or too much."""
    return _decode(sys.stdin.buffer.read(MOST_BYTES + 1), "standard input")


def stdin_waits() -> bool:
    """Whether standard input is a pipe or a file: somebody means it to be read."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # closed, or not a file of the system's
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def read_file(path: str, flag: str) -> str:
    """A text file given by `flag`. Raises UsageError naming it."""
    try:
        with open_file(Path(path).expanduser()) as f:
            return _decode(f.read(MOST_BYTES + 1), f"{flag} {path}")
    except OSError as e:
        raise UsageError(f"{flag} {path}: {e.strerror or e}") from None


def _decode(data: bytes, where: str) -> str:
    if len(data) > MOST_BYTES:
        raise UsageError(f"{where}: more than {MOST_BYTES >> 20} MiB")
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as e:
        raise UsageError(f"{where}: not UTF-8 text (byte {e.start})") from None


def random_ids(n: int, n_vocab: int) -> list[int]:
    """The same every time: time does not depend on them, but then nothing else does either."""
    import numpy as np

    ids: list[int] = np.random.default_rng(0).integers(0, n_vocab, n).tolist()
    return ids


def prompt_text(args: Namespace) -> str:
    """The text of -p or -f, without either that of a pipe, or "". A newline that ends a file is not
    part of it."""
    if args.file is not None:
        text = read_stdin() if args.file == "-" else read_file(args.file, "-f/--file")
    elif args.prompt == "-" or (args.prompt is None and stdin_waits()):
        text = read_stdin()
    else:
        text = args.prompt or ""
        return text if args.no_escape else unescape(text)
    return text.removesuffix("\n")


def check_writable(path: str, flag: str) -> None:
    """Raises UsageError for a file that could not be written, before work is done for it."""
    file = Path(path).expanduser()
    where = file if file.exists() else file.absolute().parent
    if file.is_dir() or not os.access(where, os.W_OK) or not where.exists():
        raise UsageError(f"{flag} {path}: cannot be written")
