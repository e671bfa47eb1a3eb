"""StringArray: a metadata array of strings, decoded when looked at."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

_PREFIX = 8  # bytes of the length before each string
_MANY = 1000  # strings that are worth decoding together


class StringArray(Sequence[str]):
    """Strings as the file stores them, each after its 8-byte length, and where each one begins.

    Behaves as a read-only sequence of str; a slice is a list. Bytes that are not UTF-8 (half of a
    multi-byte character is a legal token) become surrogate escapes, which encode back to the same
    bytes; `raw` gives the bytes themselves. It owns its memory, so it outlives the file.

    stored: the strings with their lengths. bounds: where in `stored` each length begins, and the
    end: one more than there are strings.
    """

    __slots__ = ("_bounds", "_stored")

    def __init__(self, stored: bytes, bounds: array[int]) -> None:
        self._stored = stored
        self._bounds = bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def raw(self, i: int) -> bytes:
        """String `i` as bytes."""
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"string {i} of {n}")
        i %= n
        return self._stored[self._bounds[i] + _PREFIX : self._bounds[i + 1]]

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        return self.raw(i).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def spans(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Their bytes, uint8, and where each string begins and ends, int64 [n]; between two of them
        are zeros."""
        data, bounds = self._blanked()
        return data, bounds[:-1] + _PREFIX, bounds[1:]

    def _blanked(self) -> tuple[np.ndarray, np.ndarray]:
        """A copy of what is stored with zeros in place of lengths, uint8; the bounds, int64."""
        bounds = np.frombuffer(self._bounds, f"i{self._bounds.itemsize}").astype(np.int64)
        data = np.frombuffer(self._stored, np.uint8)[: bounds[-1]].copy()
        data[: bounds[0]] = 0
        starts, lengths = bounds[:-1], np.diff(bounds) - _PREFIX
        longer = starts
        if np.array_equal(data[starts], lengths.astype(np.uint8)):  # the lowest byte comes first
            data[starts] = 0
            longer = starts[lengths > 255]
        for i in range(_PREFIX) if len(longer) else ():
            data[longer + i] = 0
        return data, bounds

    def tolist(self) -> list[str]:
        """All strings."""
        stored, bounds = self._stored, self._bounds
        if len(self) >= _MANY:
            # All at once: each length becomes one zero byte, where the text is cut again.
            data, starts = self._blanked()
            kept = data != 0
            if np.count_nonzero(kept) == data.size - _PREFIX * len(self) - bounds[0]:
                kept[starts[:-1]] = True
                text = data[kept].tobytes().decode("utf-8", "surrogateescape")
                return text.split("\0")[1:]
        return [
            stored[a + _PREFIX : b].decode("utf-8", "surrogateescape")
            for a, b in zip(bounds, bounds[1:], strict=False)
        ]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StringArray):
            return len(self) == len(other) and all(
                self.raw(i) == other.raw(i) for i in range(len(self))
            )
        if isinstance(other, (list, tuple)):
            return len(self) == len(other) and self.tolist() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        more = ", ..." if len(self) > 3 else ""
        return f"<{len(self)} strings: {', '.join(map(repr, self[:3]))}{more}>"
