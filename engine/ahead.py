"""Running ahead: the device makes token after token by itself, the host reads behind."""

from __future__ import annotations

import math
import time

import numpy as np

from gguflow.engine.backends.base import TokenLoop

LEAST, DEPTH = 2, 8  # steps on their way: they hide what the host does between two tokens
COVERED_S = 6e-3  # of the device's time that steps on their way should last


class Ahead:
    """The next tokens of sequences that are generated together.

    Steps run beyond a stop write rows of the KV cache past the last token taken; those are not
    visible to anything and are written again when their positions come. A recurrent state has seen
    their tokens: whoever goes on with the sequence has to bring it back.
    """

    def __init__(self, loop: TokenLoop, most: int) -> None:
        """loop: its inputs are written for the first step. most: steps to run, for which the page
        tables have pages. taken: steps whose tokens were taken."""
        self._loop = loop
        self._left = most
        self._running = self.taken = 0
        self._began = time.perf_counter()
        self._came: float | None = None  # when the last tokens came
        self._depth = LEAST
        loop.start()

    @property
    def is_over(self) -> bool:
        return not self._left and not self._running

    @property
    def seconds(self) -> float:
        """Since the first step was asked for, until the last tokens came. Of a single step the host
        knows nothing: those on their way may be done before it looks."""
        return 0.0 if self._came is None else self._came - self._began

    @property
    def running(self) -> int:
        """Steps on their way."""
        return self._running

    def next(self, most: int = DEPTH) -> np.ndarray:
        """The tokens after the next ones of the sequences: int32 [n], -1 for padding. most: steps
        on their way, at most."""
        while self._left and self._running < min(self._depth, most):
            self._loop.launch()
            self._left -= 1
            self._running += 1
        tokens = self._loop.wait(self.taken + 1)
        self.taken += 1
        self._running -= 1
        self._measure()
        return tokens

    def stop(self) -> None:
        """Start no more steps; those on their way are still to be taken."""
        self._left = 0

    def _measure(self) -> None:
        """Long steps need fewer on their way: what is run beyond a stop is lost."""
        now = time.perf_counter()
        if self._came is not None and now > self._came:
            wanted = min(DEPTH, max(LEAST, math.ceil(COVERED_S / (now - self._came))))
            self._depth += (wanted > self._depth) - (wanted < self._depth)
        self._came = now
