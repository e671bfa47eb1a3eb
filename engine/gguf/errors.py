"""GgufError: what is wrong with a file, and where."""

from __future__ import annotations

import os

from gguflow.engine.harmless import message_line

_SHOWN = 120  # characters of a name or value that fit in a message


def show(value: object) -> str:
    """`value` on one short line: strings quoted, control characters escaped, long ones cut."""
    if isinstance(value, (str, bytes)) and len(value) > _SHOWN:
        return f"{repr(value[:_SHOWN])[:_SHOWN]}... ({len(value)} characters)"
    text = repr(value) if isinstance(value, (str, bytes)) else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


class GgufError(ValueError):
    """A file that is not valid GGUF, or lacks what was asked of it. The message is one line.

    path: the file; offset: byte offset of the fault in it, None where there is no such place;
    field: what was being read; found, expected: in words.
    """

    def __init__(
        self,
        path: str | bytes | os.PathLike[str],
        field: str,
        found: object,
        expected: object,
        *,
        offset: int | None = None,
    ) -> None:
        self.path = os.fsdecode(path)
        self.field = field
        self.found = str(found)
        self.expected = str(expected)
        self.offset = offset
        # File names come from outside too: a line break in one must not split the message.
        name = self.path if self.path.isprintable() and self.path else show(self.path)
        where = "" if offset is None else f"byte {offset}: "
        text = f"{name}: {where}{field}: found {found}, expected {expected}"
        super().__init__(message_line(text))
