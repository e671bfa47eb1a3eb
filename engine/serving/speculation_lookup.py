"""Guesses by n-grams: what followed the last tokens when they stood there before (Saxena 2023,
"prompt lookup decoding"), in the same text or, from a cache file, in earlier ones."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gguflow.engine.files import read_file, whole_file
from gguflow.engine.gguf.keys import KeyReader

from .speculation import Line, SpeculationError

if TYPE_CHECKING:
    from gguflow.engine.model import Model

    from .runner import Sampling

LONGEST, SHORTEST = 4, 2  # n-grams of one text
CONTEXT = 2  # tokens before a next one, in the cache
MAGIC = b"gguflow n-grams 1\n"
MOST_ENTRIES = 1 << 24
_HEAD = struct.Struct("<32sQ")
_ENTRY = np.dtype([("before", "<i4", (CONTEXT,)), ("next", "<i4"), ("count", "<i4")])


class NGrams:
    """Where the n-grams of one growing text ended last: the longest that is found decides."""

    def __init__(self) -> None:
        self._at: list[dict[tuple[int, ...], int]] = [{} for _ in range(LONGEST + 1)]
        self._n = 0  # tokens seen

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in what has been added to a text since the last call."""
        for end in range(self._n, len(tokens)):
            # The n-gram before a token, with where the token is: the last one has no next yet.
            for n in range(SHORTEST, min(LONGEST, end) + 1):
                self._at[n][tuple(tokens[end - n : end])] = end
        self._n = len(tokens)

    def find(self, last: Sequence[int]) -> int | None:
        """The position of what came after these tokens, the latest time they stood there."""
        for n in range(min(LONGEST, len(last)), SHORTEST - 1, -1):
            at = self._at[n].get(tuple(last[len(last) - n :]))
            if at is not None:
                return at
        return None


class NGramCache:
    """What most often followed two tokens, in earlier texts.

    Its file: magic, the SHA-256 of the vocabulary, the number of entries, and entries of four
    int32: two tokens, the next one, and how often that came.
    """

    def __init__(self, model: Model) -> None:
        source = model.source
        tokens = KeyReader(source.metadata, source.path).strings("tokenizer.ggml.tokens", None)
        names = range(model.hp.n_vocab) if tokens is None else tokens
        text = "\0".join(map(str, names)).encode("utf-8", "surrogateescape")
        self._vocabulary = hashlib.sha256(text).digest()
        self._n_vocab = model.hp.n_vocab
        self._counts: dict[tuple[int, ...], dict[int, int]] = {}

    def __len__(self) -> int:
        """Pairs of tokens with something after them."""
        return len(self._counts)

    def add(self, tokens: Sequence[int], start: int = 0) -> None:
        """Count the n-grams of a text, those that end with its tokens from `start` on."""
        for i in range(max(CONTEXT, start), len(tokens)):
            after = self._counts.setdefault(tuple(tokens[i - CONTEXT : i]), {})
            after[tokens[i]] = after.get(tokens[i], 0) + 1

    def next(self, last: Sequence[int]) -> int | None:
        """What followed most often: more often than not, and more than once."""
        after = self._counts.get(tuple(last[len(last) - CONTEXT :]))
        if after is None:
            return None
        token, count = max(after.items(), key=lambda item: item[1])
        return token if count > 1 and 2 * count > sum(after.values()) else None

    def read(self, path: str | Path) -> None:
        """Add a file's counts; one that is not there has none. Raises SpeculationError for what is
        no such file, or one of another vocabulary."""
        try:
            data = read_file(path, len(MAGIC) + _HEAD.size + MOST_ENTRIES * _ENTRY.itemsize)
        except FileNotFoundError:
            return
        except OSError as e:
            raise SpeculationError(f"`lookup_cache` {path}: {e.strerror or e}") from None
        body = data[len(MAGIC) :]
        if not data.startswith(MAGIC) or len(body) < _HEAD.size:
            raise SpeculationError(f"`lookup_cache` {path}: no file of n-grams")
        vocabulary, n = _HEAD.unpack_from(body)
        if vocabulary != self._vocabulary:
            raise SpeculationError(f"`lookup_cache` {path}: made with another vocabulary")
        if n > MOST_ENTRIES or len(body) != _HEAD.size + n * _ENTRY.itemsize:
            raise SpeculationError(f"`lookup_cache` {path}: {n} entries do not fit its size")
        entries = np.frombuffer(body, _ENTRY, n, _HEAD.size)
        ids = np.concatenate([entries["before"].ravel(), entries["next"]])
        if n and not (ids.min() >= 0 and ids.max() < self._n_vocab and entries["count"].min() > 0):
            raise SpeculationError(f"`lookup_cache` {path}: token ids or counts out of range")
        for before, token, count in entries.tolist():
            after = self._counts.setdefault(tuple(before), {})
            after[token] = after.get(token, 0) + count

    def write(self, path: str | Path) -> None:
        """Replace the file. Raises SpeculationError where that cannot be done."""
        most = np.iinfo(np.int32).max
        found = [
            (before, token, min(count, most))
            for before, after in self._counts.items()
            for token, count in after.items()
        ]
        found.sort(key=lambda e: -e[2])
        entries = np.array(found[:MOST_ENTRIES], _ENTRY)
        data = MAGIC + _HEAD.pack(self._vocabulary, len(entries)) + entries.tobytes()
        try:
            with whole_file(path) as part:
                part.write_bytes(data)
        except OSError as e:
            raise SpeculationError(f"`lookup_cache` {path}: {e.strerror or e}") from None


class Lookup:
    """A drafter that looks up. cache: for what the text itself does not have."""

    took = 0.0

    def __init__(self, cache: NGramCache | None = None) -> None:
        self.cache = cache
        self._texts: dict[int, NGrams] = {}
        self._written: dict[int, tuple[Sequence[int], int]] = {}  # texts, and where they began

    def draft(
        self, lines: Sequence[Line], lengths: Sequence[int], sampling: Sampling
    ) -> list[list[int]]:
        return [self._line(line, n) for line, n in zip(lines, lengths, strict=True)]

    def seconds(self, n_lines: int) -> float:
        return 0.0

    def forget(self, keys: set[int]) -> None:
        for key in keys:
            self._texts.pop(key, None)
            text, start = self._written.pop(key, ((), 0))
            if self.cache is not None:
                self.cache.add(text, start)

    def _line(self, line: Line, n: int) -> list[int]:
        grams = self._texts.setdefault(line.key, NGrams())
        grams.extend(line.tokens)
        if self.cache is not None:
            self._written.setdefault(line.key, (line.tokens, len(line.tokens)))
        guesses: list[int] = []
        while len(guesses) < n:
            last = [*line.tokens[-LONGEST:], *guesses][-LONGEST:]
            at = grams.find(last)
            if at is not None:
                token: int | None = line.tokens[at]
            else:
                token = None if self.cache is None else self.cache.next(last)
            if token is None:
                break
            guesses.append(token)
        return guesses
