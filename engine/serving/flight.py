"""The run that an engine is at, which those who wanted it may give up while it is computed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gguflow.engine.interrupt import Cancellation

from .request import RequestId


class Flight:
    """Which requests have how many rows in the run. It is ended in the middle when most of its rows
    are nobody's any more, and those who are left have theirs computed again: sooner than they would
    have had them, for what is gone need not be finished. Less, and the run goes on: it is theirs.

    A run on a device, or of a host and a device that meet in the middle, cannot be ended. gone:
    requests that have been cancelled and may be aboard all the same.
    """

    def __init__(self, gone: deque[RequestId]) -> None:
        self._gone = gone
        self._lock = threading.Lock()
        self._run = Cancellation()
        self._rows: dict[RequestId, int] = {}
        self._n_rows = 0
        self._repeats = False
        self._over = False

    @contextmanager
    def of(self, rows: Mapping[RequestId, int], repeats: bool) -> Iterator[None]:
        """Around a run of so many rows of each request; raises Cancelled when it was given up.

        repeats: whether rows may be computed again after they were, which a recurrent state's may
        not.
        """
        with self._lock:
            self._rows, self._n_rows = dict(rows), sum(rows.values())
            self._repeats = repeats
            if not self._over:
                self._run.clear()
        for id in self._gone.copy():
            self.leave(id)
        try:
            with self._run.heeded():
                yield
        finally:
            with self._lock:
                self._rows = {}

    def leave(self, id: RequestId) -> None:
        """A request is wanted no more; from any thread."""
        with self._lock:
            if self._rows.pop(id, None) is None:
                return
            left = sum(self._rows.values())
            if not left or (self._repeats and 2 * left <= self._n_rows):
                self._run.request()

    def end(self) -> None:
        """End the run whoever wants it, and those that would begin; from any thread."""
        with self._lock:
            self._over = True
            self._run.request()
