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
        self._share, self._n_vocab, self.inner = share, n_vocab, inner
        self._rng = np.random.default_rng(seed)
        self._which: dict[int, np.ndarray] = {}

    @property
    def took(self) -> float:
        return 0.0 if self.inner is None else self.inner.took

    def draft(
        self, lines: Sequence[Line], lengths: Sequence[int], sampling: Sampling
    ) -> list[list[int]]:
        found = [self._line(line, n) for line, n in zip(lines, lengths, strict=True)]
        if self.inner is not None:
            made = self.inner.draft(lines, lengths, sampling)
            found = [mine[: len(m)] for mine, m in zip(found, made, strict=True)]
            self.inner.pretend(lines, found)
        return found

    def seconds(self, n_lines: int) -> float:
        return 0.0 if self.inner is None else self.inner.seconds(n_lines)

    def forget(self, keys: set[int]) -> None:
        if self.inner is not None:
            self.inner.forget(keys)
        for key in keys:
            self._which.pop(key, None)

    def prepared(self, line: Line) -> np.ndarray:
        # Whether a guess is right is drawn once for its position: what comes after a wrong guess is
        # seen by nobody before it is guessed again, so rounds are as with a draw for every guess.
        if line.key not in self._which:
            at = len(line.tokens)
            (text,) = [t for t in self._texts if t[:at] == list(line.tokens)][:1]
            right = np.array(text, np.int32)
            is_right = self._rng.random(len(right)) < self._share
            self._which[line.key] = np.where(is_right, right, (right + 1) % self._n_vocab)
        return self._which[line.key]

    def _line(self, line: Line, n: int) -> list[int]:
        at = len(line.tokens)
        guesses: list[int] = self.prepared(line)[at : at + n].tolist()
        return guesses
