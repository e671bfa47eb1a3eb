"""Threads that run, or an error.

Python's `Thread.start` waits until the new thread says that it runs. One that gets no memory for
its first call never does, and `start` waits for ever: a process that has just been refused memory
hangs where it should end. Here it waits for PATIENCE and raises what Python raises where the system
gives no thread at all.
"""

from __future__ import annotations

import threading
from typing import Any

PATIENCE = 10.0  # seconds; one that has memory runs within milliseconds


class Thread(threading.Thread):
    """A thread whose `start` raises RuntimeError where it does not come to run."""

    _is_late = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._started = _Begun()  # what Thread.start waits for, in every version

    def start(self) -> None:
        try:
            super().start()
        except RuntimeError:
            self._is_late = True
            raise

    def run(self) -> None:
        if not self._is_late:  # nobody counts on it any more
            super().run()


class _Begun(threading.Event):
    """Set by a thread that runs."""

    def wait(self, timeout: float | None = None) -> bool:
        if super().wait(PATIENCE if timeout is None else timeout):
            return True
        if timeout is None:
            raise RuntimeError("can't start new thread")
        return False
