"""Who goes next: a bounded queue that takes turns over keys.

The engine has so many places. Beyond them requests wait here, in a line for each key, and whoever
has waited longest of the key whose turn it is gets the next place: one key with a thousand requests
does not hold up another's single one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress


class QueueFullError(Exception):
    """As many requests wait as may."""


class Gate:
    """n_places: who may be in at once. n_queue: who may wait for a place, all keys together."""

    def __init__(self, n_places: int, n_queue: int) -> None:
        self.n_places, self.n_queue = n_places, n_queue
        self.n_inside = 0
        self.n_waiting = 0
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def check(self) -> None:
        """Raises QueueFullError when `enter` would."""
        if self.n_inside >= self.n_places and self.n_waiting >= self.n_queue:
            raise QueueFullError(f"{self.n_waiting} requests wait already")

    async def enter(self, key: str) -> None:
        """Wait for a place; `leave` gives it back. Raises QueueFullError."""
        if self.n_inside < self.n_places and not self._lines:
            self.n_inside += 1
            return
        self.check()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(key, deque()).append(turn)
        self.n_waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()  # its turn had come already
            else:
                self.n_waiting -= 1
                self._forget(key, turn)
            raise

    def leave(self) -> None:
        """Give a place back, to whoever is next."""
        self.n_inside -= 1
        while self._lines and self.n_inside < self.n_places:
            key, line = self._lines.popitem(last=False)
            turn = line.popleft()
            if line:
                self._lines[key] = line  # the key's next turn comes after everyone else's
            if turn.cancelled():
                continue  # `enter` is about to take it out of the count
            turn.set_result(None)
            self.n_waiting -= 1
            self.n_inside += 1

    def _forget(self, key: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(key)
        if line is None:
            return
        with suppress(ValueError):
            line.remove(turn)
        if not line:
            del self._lines[key]
