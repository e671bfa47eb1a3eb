"""Many strings as one array of bytes, and their hashes all at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gguflow.engine.gguf import StringArray

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_INVERSE = pow(_BASE, -1, 1 << 64)
_BLOCK = 256 << 10  # bytes hashed at a time: what that takes stays in a cache


class PackedText:
    """Strings in UTF-8. data: uint8 with all of them; starts, ends: of each, int64 [n]."""

    def __init__(self, strings: StringArray | Sequence[str]) -> None:
        if isinstance(strings, StringArray):
            self.data, self.starts, self.ends = strings.spans()
            return
        raw = [s.encode("utf-8", "surrogateescape") for s in strings]
        self.data = np.frombuffer(b"".join(raw), np.uint8)
        self.ends = np.cumsum([len(r) for r in raw], dtype=np.int64)
        self.starts = self.ends - [len(r) for r in raw]

    def __len__(self) -> int:
        return len(self.starts)

    def text(self, i: int) -> str:
        """String `i`."""
        raw = self.data[self.starts[i] : self.ends[i]].tobytes()
        return raw.decode("utf-8", "surrogateescape")

    def find(self, byte: int) -> tuple[np.ndarray, np.ndarray]:
        """Where a byte stands in each string, any of the places or the end, and how often."""
        at = np.flatnonzero(self.data == byte)
        if len(at) == len(self) and ((at >= self.starts) & (at < self.ends)).all():  # one in each
            return at, np.ones(len(at), np.int64)
        i = np.searchsorted(self.ends, at, "right")
        inside = i < len(self)
        at, i = at[inside], i[inside]
        inside = at >= self.starts[i]  # and not in between two
        at, i = at[inside], i[inside]
        where = self.ends.copy()
        where[i] = at
        return where, np.bincount(i, minlength=len(self))


class Hashes:
    """Hashes of pieces of packed strings: uint64, sums of (byte + 1) * BASE ** place modulo 2^64.

    Equal texts have equal ones, and a + b that of a plus that of b times BASE ** len(a). Two texts
    of one vocabulary share one by chance about once in a thousand million vocabularies.
    """

    def __init__(self, text: PackedText) -> None:
        self._text = text
        most = int((text.ends - text.starts).max(initial=0))
        n = most + _BLOCK + 1
        self._powers = _geometric(_BASE, n)
        self._inverse = _geometric(_INVERSE, n)

    def of(self, *cuts: np.ndarray) -> list[np.ndarray]:
        """Of each string from cuts[0] to cuts[1], from cuts[2] to cuts[3], and so on: int64 [n]."""
        starts, ends = self._text.starts, self._text.ends
        out = [np.empty(len(starts), np.uint64) for _ in cuts[::2]]
        first = 0
        while first < len(starts):
            begin = int(starts[first])
            last = int(np.searchsorted(ends, begin + _BLOCK, "right"))
            last = max(last, first + 1)
            part = slice(first, last)
            data = self._text.data[begin : int(ends[last - 1])]
            sums = np.zeros(len(data) + 1, np.uint64)
            np.cumsum((data + np.uint64(1)) * self._powers[: len(data)], out=sums[1:])
            for i, into in enumerate(out):
                a, b = cuts[2 * i][part] - begin, cuts[2 * i + 1][part] - begin
                into[part] = (sums[b] - sums[a]) * self._inverse[a]
            first = last
        return out

    def joined(self, left: np.ndarray, right: np.ndarray, n_left: np.ndarray) -> np.ndarray:
        """Of the texts of `left`, `n_left` bytes each, followed by those of `right`."""
        return left + right * self._powers[n_left]


def _geometric(factor: int, n: int) -> np.ndarray:
    powers = np.full(n, factor, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


class Table:
    """Where 64-bit keys first stand in a list of them, for many keys at once or for one.

    Hash tables of four slots a key, without chains: a key that finds its slot taken goes to the
    next, smaller table. Made and searched in whole arrays.
    """

    def __init__(self, keys: np.ndarray) -> None:
        """keys: uint64 [n]."""
        self._keys = keys
        self._levels: list[tuple[int, int, np.ndarray]] = []
        left = np.arange(len(keys), dtype=np.int32)
        for factor in _FACTORS:
            if not len(left):
                break
            bits = max(4, (4 * len(left)).bit_length())
            slots = np.full(1 << bits, -1, np.int32)
            own = keys[left]
            at = (own * np.uint64(factor)) >> np.uint64(64 - bits)
            slots[at] = left  # of several, numpy does not say which
            holder = slots[at]
            lost = np.flatnonzero(holder != left)
            again = lost[keys[holder[lost]] == own[lost]]
            np.minimum.at(slots, at[again], left[again])
            left = left[np.setdiff1d(lost, again, assume_unique=True)]
            self._levels.append((factor, 64 - bits, slots))
        self._rest: dict[int, int] = {}
        for i in left[::-1].tolist():
            self._rest[int(keys[i])] = i
        # Memoryviews give Python's own numbers, several times faster than numpy's.
        self._views = [(f, shift, slots.data) for f, shift, slots in self._levels]
        self._view = np.ascontiguousarray(keys).data

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Places, int32 [n], -1 for keys that are not there."""
        out = np.full(len(keys), -1, np.int32)
        todo = np.arange(len(keys))
        for factor, shift, slots in self._levels:
            wanted = keys[todo]
            i = slots[(wanted * np.uint64(factor)) >> np.uint64(shift)]
            found = (self._keys[i] == wanted) & (i >= 0)
            out[todo[found]] = i[found]
            todo = todo[~found]
            if not len(todo):
                break
        for i in todo.tolist() if self._rest else ():
            out[i] = self._rest.get(int(keys[i]), -1)
        return out

    def find_one(self, key: int) -> int:
        """The place of one key, or -1."""
        for factor, shift, slots in self._views:
            i = slots[(key * factor & _ALL) >> shift]
            if i >= 0 and self._view[i] == key:
                return i
        return self._rest.get(key, -1)


_ALL = (1 << 64) - 1
# Multipliers whose products' upper bits are well spread (Steele and Vigna 2021).
_FACTORS = (0xD1342543DE82EF95, 0xAF251AF3B0F025B5, 0xB564EF22EC7AECE5, 0xF7C2EBC08F67F2B5)
