"""Running ahead: the device makes token after token by itself, the host reads behind."""

from __future__ import annotations

import numpy as np

from gguflow.engine.backends.base import TokenLoop

DEPTH = 8  # steps on their way: they hide what the host does between two tokens


class Ahead:
    """The next tokens of some sequences, one a row of a plan.

    Steps run beyond a stop write rows of the KV cache past the last token taken; those are not
    visible to anything and are written again when their positions come.
    """

    def __init__(self, loop: TokenLoop, most: int) -> None:
        """loop: its inputs are written for the next step. most: steps to run."""
        self._loop = loop
        self._left = most
        self._step = 0
        self._running = 0
        loop.start()

    @property
    def is_over(self) -> bool:
        return not self._left and not self._running

    def next(self) -> np.ndarray:
        """The tokens of the next step, int32 [n]."""
        while self._left and self._running < DEPTH:
            self._loop.launch()
            self._left -= 1
            self._running += 1
        tokens = self._loop.wait(self._step)
        self._step += 1
        self._running -= 1
        return tokens

    def stop(self) -> None:
        """Launch no more: what is on its way is still to be taken."""
        self._left = 0
