"""Reads the key-value section of a header."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cursor import Cursor
from .errors import show
from .values import ARRAY, SCALAR_BY_ID, STRING, ScalarType

MAX_KEYS = 1 << 16
MAX_KEY_BYTES = (1 << 16) - 1  # from the specification
MAX_DEPTH = 4  # arrays inside arrays
# In one file. What is beyond them takes long to walk, and no vocabulary comes near.
MAX_STRINGS = 1 << 22
MAX_NESTED_ARRAYS = 1 << 16
LEAST_KEY_BYTES = 8 + 1 + 4 + 1  # length, one letter, type, the smallest value
_ARRAY_HEAD_BYTES = 4 + 8  # element type, count


def read_metadata(cur: Cursor, n_kv: int) -> tuple[dict[str, Any], dict[str, str], dict[str, int]]:
    """`n_kv` pairs: their values, their kinds, and the byte offset of each value, by key."""
    values: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    offsets: dict[str, int] = {}
    reader = _ValueReader(cur)
    for i in range(n_kv):
        at = cur.pos
        key = cur.name(f"key {i} of {n_kv}", MAX_KEY_BYTES)
        if key in values:
            raise cur.error(f"key {i} of {n_kv}", f"{show(key)} again", "each key once", at)
        field = f"key {show(key)}"
        type_id = cur.scalar("I", f"{field} type")
        offsets[key] = cur.pos
        kinds[key], values[key] = reader.value(type_id, field)
    return values, kinds, offsets


class _ValueReader:
    def __init__(self, cur: Cursor) -> None:
        self.cur = cur
        self.strings = 0
        self.nested = 0

    def value(self, type_id: int, field: str, depth: int = 0) -> tuple[str, Any]:
        """The kind and value at the cursor, whose type number has just been read."""
        cur = self.cur
        if type_id == STRING:
            return "str", cur.string(field).decode("utf-8", "surrogateescape")
        if type_id == ARRAY:
            return self.array(field, depth)
        t = self.scalar_type(type_id, field)
        if t.name != "bool":
            return t.name, cur.scalar(t.code, field)
        at = cur.pos
        byte = cur.scalar("B", field)
        if byte > 1:
            raise cur.error(field, f"a bool of {byte}", "0 or 1", at)
        return t.name, bool(byte)

    def scalar_type(self, type_id: int, field: str) -> ScalarType:
        """The scalar type with the number that ends at the cursor."""
        t = SCALAR_BY_ID.get(type_id)
        if t is None:
            raise self.cur.error(f"{field} type", f"{type_id}", "0 to 12", self.cur.pos - 4)
        return t

    def array(self, field: str, depth: int) -> tuple[str, Any]:
        """Element type, count, elements."""
        cur = self.cur
        if depth >= MAX_DEPTH:
            raise cur.error(field, "arrays nested deeper", f"at most {MAX_DEPTH} levels")
        type_id = cur.scalar("I", f"{field} element type")
        if type_id not in (STRING, ARRAY):
            t = self.scalar_type(type_id, f"{field} element")
        at = cur.pos
        n = cur.scalar("Q", f"{field} count")
        if type_id == STRING:
            cur.check_count(n, 8, "strings", f"{field} count", at)
            self.strings += n
            if self.strings > MAX_STRINGS:
                raise cur.error(
                    f"{field} count", f"{self.strings} strings", f"at most {MAX_STRINGS}", at
                )
            return "arr[str]", cur.strings(n, field)
        if type_id == ARRAY:
            cur.check_count(n, _ARRAY_HEAD_BYTES, "arrays", f"{field} count", at)
            self.nested += n
            if self.nested > MAX_NESTED_ARRAYS:
                raise cur.error(
                    f"{field} count",
                    f"{self.nested} nested arrays",
                    f"at most {MAX_NESTED_ARRAYS}",
                    at,
                )
            return self.arrays(n, field, depth)
        cur.check_count(n, t.nbytes, f"values of {t.nbytes} bytes", f"{field} count", at)
        return f"arr[{t.name}]", self.numbers(n, t, field)

    def arrays(self, n: int, field: str, depth: int) -> tuple[str, list[Any]]:
        """`n` arrays, all of one kind (one that holds no arrays fits any array of arrays)."""
        kind, items = "arr", []
        for i in range(n):
            at = self.cur.pos
            found, item = self.array(f"{field} element {i} of {n}", depth + 1)
            if i == 0 or found.startswith(kind.rstrip("]")):
                kind = found
            elif not kind.startswith(found.rstrip("]")):
                raise self.cur.error(
                    f"{field} element {i} of {n}", found, f"{kind} as before it", at
                )
            items.append(item)
        return f"arr[{kind}]", items

    def numbers(self, n: int, t: ScalarType, field: str) -> np.ndarray:
        """`n` numbers as a read-only array in native byte order, copied out of the file."""
        cur = self.cur
        at = cur.pos
        raw = cur.take(n * t.nbytes, field)
        if t.name == "bool":
            bytes_ = np.frombuffer(raw, np.uint8)
            bad = np.flatnonzero(bytes_ > 1)
            if bad.size:
                i = int(bad[0])
                raise cur.error(f"{field} element {i}", f"a bool of {bytes_[i]}", "0 or 1", at + i)
            return bytes_.view(np.bool_)
        stored = np.frombuffer(raw, np.dtype(cur.order + t.numpy))
        native = stored.astype(stored.dtype.newbyteorder("="), copy=False)
        native.flags.writeable = False
        return native
