"""Ctrl-C while native code runs: Python's own handler waits until it returns.

The interpreter writes a signal's number to a file at once, whatever its main thread does. A thread
reads it and tells the kernels' executors, which leave the program they are at after the op they
are at; the run then raises KeyboardInterrupt.
"""

from __future__ import annotations

import selectors
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ends: list[Callable[[], None]] = []


def add(end: Callable[[], None]) -> None:
    """What ends native code that is running, from any thread."""
    _ends.append(end)


@contextmanager
def heeded() -> Iterator[None]:
    """Within it, Ctrl-C ends runs in the middle. Nothing happens outside the main thread, whose
    affair signals are, and none where Ctrl-C is ignored or ends the process."""
    former = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(former):
        yield
        return
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    lock = threading.RLock()  # a second signal may come while the first is being answered

    def answer(number: int, frame: FrameType | None) -> None:
        # What is not read yet is answered here and must not end a run that begins after it.
        with lock:
            _read(theirs)
        former(number, frame)

    before = signal.set_wakeup_fd(ours.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, answer)
    watcher = threading.Thread(target=_watch, args=(theirs, lock), name="interrupts", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is answer:
            signal.signal(signal.SIGINT, former)
        signal.set_wakeup_fd(before)
        ours.close()
        watcher.join()
        theirs.close()


def _read(numbers: socket.socket) -> bytes | None:
    """Signals since it was last read, no bytes at its end, None when there is nothing to read."""
    try:
        return numbers.recv(64)
    except BlockingIOError:
        return None


def _watch(numbers: socket.socket, lock: threading.RLock) -> None:
    with selectors.DefaultSelector() as ready:
        ready.register(numbers, selectors.EVENT_READ)
        data: bytes | None = None
        while data != b"":
            ready.select()
            with lock:
                data = _read(numbers)
                if data is not None and signal.SIGINT in data:
                    for end in _ends:
                        end()
