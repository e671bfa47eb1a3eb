"""Long texts in pieces: a library that is at one of them cannot be told of Ctrl-C."""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE = 1 << 16  # characters: some tens of milliseconds


def in_pieces(text: str, places: re.Pattern[str]) -> Iterator[str]:
    """A text cut behind what `places` finds first after every PIECE characters."""
    start = 0
    while len(text) - start > PIECE and (found := places.search(text, start + PIECE)) is not None:
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]
