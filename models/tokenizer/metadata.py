"""Typed, checked look-ups of the `tokenizer.*` metadata keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gguflow.engine.gguf import GgufError, StringArray

_MISSING = object()


class Metadata:
    """The metadata mapping of a file and the file's name, for messages.

    Every method raises GgufError naming the key when the value has the wrong type.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values = values
        self._source = source

    def error(self, key: str, found: str, expected: str) -> GgufError:
        """The error to raise for a key's value."""
        return GgufError(self._source, key, found, expected)

    def string(self, key: str, default: str | None = None) -> str | None:
        """A string, or `default` when the key is absent."""
        value = self._values.get(key, _MISSING)
        if value is _MISSING:
            return default
        if not isinstance(value, str):
            raise self.error(key, _kind(value), "a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A bool, or `default` when the key is absent."""
        value = self._values.get(key, _MISSING)
        if value is _MISSING:
            return default
        if not isinstance(value, bool | np.bool_):
            raise self.error(key, _kind(value), "a bool")
        return bool(value)

    def token_id(self, key: str, n_vocab: int) -> int | None:
        """An id below n_vocab, or None when the key is absent."""
        value = self._values.get(key, _MISSING)
        if value is _MISSING:
            return None
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise self.error(key, _kind(value), "a token id")
        if not 0 <= value < n_vocab:
            raise self.error(key, f"id {value}", f"one of the {n_vocab} tokens")
        return int(value)

    def string_array(self, key: str) -> StringArray | list[str]:
        """A required array of strings as the file stores it, where it comes from one."""
        value = self._values.get(key)
        return value if isinstance(value, StringArray) else self.strings(key)

    def strings(self, key: str) -> list[str]:
        """A required array of strings."""
        value = self._values.get(key, _MISSING)
        if isinstance(value, StringArray):
            return value.tolist()
        if value is _MISSING:
            raise self.error(key, "no such key", "an array of strings")
        if isinstance(value, str | bytes | np.ndarray) or not isinstance(value, Sequence):
            raise self.error(key, _kind(value), "an array of strings")
        items = list(value)
        # A set of the types is many times faster than a Python loop over 280,000 items.
        if set(map(type, items)) - {str}:
            index = next(i for i, item in enumerate(items) if type(item) is not str)
            raise self.error(f"{key}[{index}]", _kind(items[index]), "a string")
        return items

    def octets(self, key: str) -> np.ndarray | None:
        """An array of bytes as uint8, signed or not in the file; None if absent."""
        value = self._values.get(key, _MISSING)
        if value is _MISSING:
            return None
        if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.itemsize != 1:
            raise self.error(key, _kind(value), "an array of bytes")
        return value.view(np.uint8)

    def numbers(self, key: str, count: int, kinds: str) -> np.ndarray | None:
        """An array [count] whose dtype kind is one of `kinds` ("i", "u", "f"); None if absent."""
        value = self._values.get(key, _MISSING)
        if value is _MISSING:
            return None
        if isinstance(value, list | tuple):
            value = np.asarray(value)
        wanted = f"{count} {'numbers' if 'f' in kinds else 'integers'}"
        if not isinstance(value, np.ndarray) or value.ndim != 1:
            raise self.error(key, _kind(value), wanted)
        # Length first: an empty list has a float dtype, and its length is what is wrong with it.
        if value.shape[0] != count:
            raise self.error(key, f"{value.shape[0]} entries", f"{count}, one a token")
        if value.dtype.kind not in kinds:
            raise self.error(key, _kind(value), wanted)
        return value


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return "an array"
    return f"a {type(value).__name__}"
