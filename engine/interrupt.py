"""Native code that runs is ended by another thread: Ctrl-C, or somebody who gives its results up.

Python's own handler of Ctrl-C waits until native code returns. The interpreter writes a signal's
number to a file at once, whatever its main thread does. A thread reads it and tells the kernels'
executors, which leave the program they are at after the op they are at; the run then raises
KeyboardInterrupt. A `Cancellation` ends runs of one thread alone, which raise Cancelled.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import RawIOBase
from types import FrameType

from gguflow.engine.threads import Thread

_ends: list[Callable[[], None]] = []
_words: list[tuple[Callable[..., None], Callable[..., None]]] = []


class Cancelled(RuntimeError):
    """A run was given up by a Cancellation: what it wrote is of no use."""


def add(end: Callable[[], None]) -> None:
    """What ends native code that is running, from any thread."""
    _ends.append(end)


def add_word(heed: Callable[..., None], cancel: Callable[..., None]) -> None:
    """A library whose runs heed a word: gf_heed and gf_cancel of kernels/cpu/executor.cpp."""
    _words.append((heed, cancel))


class Cancellation:
    """Ends the runs of the thread that heeds it, from any thread."""

    def __init__(self) -> None:
        self._word = ctypes.c_int32(0)

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Within it, native runs of this thread raise Cancelled once `request` has been called: in
        the middle of an op, or instead of beginning."""
        libraries = [*_words]
        for heed, _ in libraries:
            heed(ctypes.byref(self._word))
        try:
            yield
        finally:
            for heed, _ in libraries:
                heed(None)

    def request(self) -> None:
        """End what runs, and what would begin until `clear`."""
        self._word.value = 1
        for _, cancel in [*_words]:
            cancel(ctypes.byref(self._word))

    def clear(self) -> None:
        """Runs may begin again. No run of the thread may be on its way."""
        self._word.value = 0


@contextmanager
def heeded(beside_others: bool = True) -> Iterator[None]:
    """Within it, Ctrl-C ends runs in the middle. Nothing happens outside the main thread, whose
    affair signals are, and none where Ctrl-C is ignored or ends the process. beside_others: also
    where somebody else is told of signals by their numbers, and then misses those that come."""
    former = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(former):
        yield
        return
    ours, theirs = _channel()
    lock = threading.RLock()  # a second signal may come while the first is being answered
    waiting: list[tuple[int, FrameType | None]] = []
    raises = False  # not while this is put up or taken down: nobody could undo a half of it

    def answer(number: int, frame: FrameType | None) -> None:
        # What is not read yet is answered here and must not end a run that begins after it.
        with lock:
            theirs.read(64)
        if raises:
            former(number, frame)
        else:
            waiting.append((number, frame))

    watcher = Thread(target=_watch, args=(theirs, lock), name="interrupts", daemon=True)
    watcher.start()
    signal.signal(signal.SIGINT, answer)
    before = signal.set_wakeup_fd(ours.fileno(), warn_on_full_buffer=False)
    if before != -1 and not beside_others:
        signal.set_wakeup_fd(before)
    try:
        try:
            raises = True
            if waiting:
                former(*waiting.pop())
            yield
        finally:
            raises = False
    finally:
        raises = False  # had a signal come just before that
        signal.set_wakeup_fd(before)
        ours.close()
        watcher.join()
        if signal.getsignal(signal.SIGINT) is answer:
            signal.signal(signal.SIGINT, former)
        theirs.close()
        if waiting:
            former(*waiting.pop())


@contextmanager
def heeded_for_callers() -> Iterator[None]:
    """The same for a prompt that a program of somebody else's computes: only where Ctrl-C raises
    KeyboardInterrupt, as Python has it, and not beside an event loop's own numbers of signals."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    with heeded(beside_others=False):
        yield


def _channel() -> tuple[RawIOBase, RawIOBase]:
    """What the interpreter writes the numbers of signals to, and what gives them to who reads: no
    bytes at its end, None when there is nothing to read. A pipe; Windows writes to sockets alone,
    whose module takes long to import."""
    if os.name != "nt":
        theirs, ours = os.pipe()
        for end in (ours, theirs):
            os.set_blocking(end, False)
        return open(ours, "wb", buffering=0), open(theirs, "rb", buffering=0)
    import socket

    pair = socket.socketpair()
    for s in pair:
        s.setblocking(False)
    return pair[0].makefile("wb", buffering=0), pair[1].makefile("rb", buffering=0)


def _wait(numbers: RawIOBase) -> None:
    """Until there is something to read."""
    if hasattr(select, "poll"):
        ready = select.poll()
        ready.register(numbers, select.POLLIN)
        ready.poll()
    else:
        select.select([numbers], [], [])


def _watch(numbers: RawIOBase, lock: threading.RLock) -> None:
    data: bytes | None = None
    while data != b"":
        _wait(numbers)
        with lock:
            data = numbers.read(64)
            if data is not None and signal.SIGINT in data:
                for end in _ends:
                    end()
