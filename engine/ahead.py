"""Running ahead: the device makes token after token by itself, the host reads behind."""

from __future__ import annotations

from gguflow.engine.backends.base import TokenLoop

DEPTH = 8  # steps on their way: they hide what the host does between two tokens


class Ahead:
    """The next tokens of one generation.

    Steps run beyond a stop write rows of the KV cache past the last token taken; those are not
    visible to anything and are written again when their positions come.
    """

    def __init__(self, loop: TokenLoop, pos: int, most: int) -> None:
        """loop: its inputs are written for the step at position `pos`. most: steps to run."""
        self._loop = loop
        self._pos = pos
        self._left = most
        self._running = 0
        loop.start()

    @property
    def is_over(self) -> bool:
        return not self._left and not self._running

    def next(self) -> int:
        """The token after the one at the position that is next."""
        while self._left and self._running < DEPTH:
            self._loop.launch()
            self._left -= 1
            self._running += 1
        token = self._loop.wait(self._pos + 1)
        self._pos += 1
        self._running -= 1
        return token
