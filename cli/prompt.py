"""The prompt, from wherever the user gives it."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from pathlib import Path

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


def read_stdin() -> str:
    """All of standard input. Raises UsageError for what is not UTF-8."""
    return _decode(sys.stdin.buffer.read(), "standard input")


def read_file(path: str, flag: str) -> str:
    """A text file given by `flag`. Raises UsageError naming it."""
    try:
        return _decode(Path(path).read_bytes(), f"{flag} {path}")
    except OSError as e:
        raise UsageError(f"{flag} {path}: {e.strerror or e}") from None


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise UsageError(f"{where}: not UTF-8 text (byte {e.start})") from None


def random_ids(n: int, n_vocab: int) -> list[int]:
    """The same every time: time does not depend on them, but then nothing else does either."""
    import numpy as np

    ids: list[int] = np.random.default_rng(0).integers(0, n_vocab, n).tolist()
    return ids


def prompt_text(args: Namespace) -> str:
    """The text of -p or -f, "" without either. A newline that ends a file is not part of it."""
    if args.file is not None:
        text = read_stdin() if args.file == "-" else read_file(args.file, "-f/--file")
    elif args.prompt == "-":
        text = read_stdin()
    else:
        text = args.prompt or ""
        return text if args.no_escape else unescape(text)
    return text.removesuffix("\n")
