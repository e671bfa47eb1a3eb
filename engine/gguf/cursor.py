"""Cursor: the only code that reads header bytes. Every read is checked against the end first."""

from __future__ import annotations

import struct
from typing import Any

from .errors import GgufError, show
from .strings import StringArray
from .walk import string_bounds

# No real header comes near this; a sparse file of terabytes costs its maker nothing.
MAX_HEADER_BYTES = 1 << 30


class Cursor:
    """A position in the mapped file.

    buffer: the file. order: `<` or `>`, the file's byte order.
    """

    def __init__(self, path: str, buffer: memoryview) -> None:
        self.path = path
        self.buffer = buffer[:MAX_HEADER_BYTES]
        self.pos = 0
        self.order = "<"
        self._limit = (
            "what is left of the file"
            if len(buffer) <= MAX_HEADER_BYTES
            else f"what is left of the {MAX_HEADER_BYTES} bytes a header may take"
        )

    @property
    def left(self) -> int:
        """Bytes from here to the end."""
        return len(self.buffer) - self.pos

    def error(self, field: str, found: Any, expected: Any, offset: int | None = None) -> GgufError:
        """A GgufError about the byte at `offset`, or here."""
        return GgufError(
            self.path, field, found, expected, offset=self.pos if offset is None else offset
        )

    def check_count(self, n: int, item_bytes: int, what: str, field: str, offset: int) -> None:
        """Fail unless `n` items of at least `item_bytes` each fit in what is left."""
        most = self.left // item_bytes
        if n > most:
            raise self.error(field, f"{n} {what}", f"at most {most} in {self._limit}", offset)

    def take(self, n: int, field: str) -> bytes:
        """The next `n` bytes."""
        if n > self.left:
            raise self.error(field, f"{self.left} bytes before the end", f"{n} bytes (truncated?)")
        start = self.pos
        self.pos = start + n
        return bytes(self.buffer[start : self.pos])

    def scalar(self, code: str, field: str) -> Any:
        """One value of `struct` format `code`."""
        s = struct.Struct(self.order + code)
        return s.unpack(self.take(s.size, field))[0]

    def string(self, field: str, least: int = 0, most: int = MAX_HEADER_BYTES) -> bytes:
        """A string: its length as u64, then as many bytes, of which `least` to `most` are fine."""
        at = self.pos
        n = self.scalar("Q", f"{field} length")
        self.check_count(n, 1, "bytes", f"{field} length", at)
        if not least <= n <= most:
            raise self.error(f"{field} length", f"{n} bytes", f"{least} to {most}", at)
        return self.take(n, field)

    def name(self, field: str, most: int) -> str:
        """A string that must be UTF-8 and not empty."""
        at = self.pos
        raw = self.string(field, 1, most)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as e:
            raise self.error(field, f"{show(raw)}, {e.reason}", "UTF-8", at + 8 + e.start) from None

    def strings(self, n: int, field: str) -> StringArray:
        """`n` strings. The caller has checked `n` against the bytes left."""
        bounds = string_bounds(self.buffer[self.pos :], n, self.order)
        if len(bounds) <= n:
            # Read from a string that fits to the one that does not, for the error that names it.
            i = max(len(bounds) - 2, 0)
            self.pos += bounds[i] if bounds else 0
            while True:
                self.string(f"{field} element {i} of {n}")
                i += 1
        return StringArray(self.take(bounds[-1], field), bounds)
