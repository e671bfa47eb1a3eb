"""Typed, checked look-ups of the `tokenizer.*` metadata keys."""

from __future__ import annotations

import numpy as np

from gguflow.engine.gguf import GgufError, StringArray
from gguflow.engine.gguf.keys import KeyReader, described


class Metadata(KeyReader):
    """The keys of a file as vocabularies need them. Every method raises GgufError naming the key
    when the value has the wrong type."""

    def error(self, key: str, found: str, expected: str) -> GgufError:
        """The error to raise for a key's value."""
        return GgufError(self._path, key, found, expected)

    def token_id(self, key: str, n_vocab: int) -> int | None:
        """An id below n_vocab, or None when the key is absent."""
        value = self.find(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise self.error(key, described(value), "a token id")
        if not 0 <= value < n_vocab:
            raise self.error(key, f"id {value}", f"one of the {n_vocab} tokens")
        return int(value)

    def string_array(self, key: str) -> StringArray | list[str]:
        """A required array of strings as the file stores it, where it comes from one."""
        value = self._values.get(key)
        return value if isinstance(value, StringArray) else self.strings(key)

    def numbers(self, key: str, count: int, kinds: str) -> np.ndarray | None:
        """An array with an entry a token; None if absent."""
        return self.array(key, count, kinds, ", one a token")
