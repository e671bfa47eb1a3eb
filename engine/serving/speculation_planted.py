"""Guesses that are right with a given probability, to measure speed with: random weights agree
about nothing, so no draft's real guesses would come true."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .runner import Sampling
from .speculation import Line
from .speculation_draft import DraftModel


class Planted:
    """A drafter that knows what comes: the target's own tokens, each with probability `share`, and
    others.

    texts: what the lines will be, prompts included. inner: a draft model that is run for its time.
    """

    def __init__(
        self, texts: Sequence[Sequence[int]], share: float, n_vocab: int, seed: int = 0,
        inner: DraftModel | None = None,
    ) -> None:  # fmt: skip
        self._texts = [list(text) for text in texts]
        self._share, self._n_vocab, self._inner = share, n_vocab, inner
        self._rng = np.random.default_rng(seed)
        self._which: dict[int, list[int]] = {}

    @property
    def took(self) -> float:
        return 0.0 if self._inner is None else self._inner.took

    def draft(
        self, lines: Sequence[Line], lengths: Sequence[int], sampling: Sampling
    ) -> list[list[int]]:
        found = [self._line(line, n) for line, n in zip(lines, lengths, strict=True)]
        if self._inner is not None:
            made = self._inner.draft(lines, lengths, sampling)
            found = [mine[: len(m)] for mine, m in zip(found, made, strict=True)]
            self._inner.pretend(lines, found)
        return found

    def seconds(self, n_lines: int) -> float:
        return 0.0 if self._inner is None else self._inner.seconds(n_lines)

    def forget(self, keys: set[int]) -> None:
        if self._inner is not None:
            self._inner.forget(keys)
        for key in keys:
            self._which.pop(key, None)

    def _line(self, line: Line, n: int) -> list[int]:
        at = len(line.tokens)
        if line.key not in self._which:
            (self._which[line.key],) = [t for t in self._texts if t[:at] == list(line.tokens)][:1]
        right = np.array(self._which[line.key][at : at + n], np.int64)
        wrong = (right + 1) % self._n_vocab
        guesses: list[int] = np.where(
            self._rng.random(len(right)) < self._share, right, wrong
        ).tolist()
        return guesses
