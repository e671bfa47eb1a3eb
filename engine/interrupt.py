"""Ctrl-C while native code runs: Python's own handler waits until it returns.

The interpreter writes a signal's number to a file at once, whatever its main thread does. A thread
reads it and tells the kernels' executors, which leave the program they are at after the op they
are at; the run then raises KeyboardInterrupt.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ends: list[Callable[[], None]] = []


def add(end: Callable[[], None]) -> None:
    """What ends native code that is running, from any thread."""
    _ends.append(end)


@contextmanager
def heeded() -> Iterator[None]:
    """Within it, Ctrl-C ends runs in the middle. Nothing happens outside the main thread, whose
    affair signals are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    before = signal.set_wakeup_fd(ours.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(theirs,), name="interrupts", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ours.close()
        watcher.join()
        theirs.close()


def _watch(numbers: socket.socket) -> None:
    while data := numbers.recv(64):
        if signal.SIGINT in data:
            for end in _ends:
                end()
