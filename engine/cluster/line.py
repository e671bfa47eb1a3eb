"""Calls to a process of the same machine over a socket of its own: they take a tenth of what calls
of actors do, which go by way of Ray's own processes.

Both ends prove that they know a key, which came by way of Ray. What is small goes through the
socket; arrays lie in memory that both see, a file each end has for what it sends. An end writes
there again with its next message, for then the other has answered the last one.
"""

from __future__ import annotations

import mmap
import os
import pickle
import secrets
import select
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NamedTuple

import numpy as np

from gguflow.engine.profile.machine import cores
from gguflow.engine.threads import Thread

from .errors import ClusterError

Answer = Callable[[str, tuple[Any, ...]], Any]
LEAST = 64 << 10  # bytes of an array that is worth the second file
# A processor that sleeps takes a tenth of a millisecond or more to wake, a stage's run mostly less
# than so many seconds. One busy processor is nothing among so many.
AWAKE_S, SPARE = 5e-3, 8
_GONE = (EOFError, OSError)
_FINE: tuple[str, Any] = ("", None)
_MEMORY = "/dev/shm"
_ALIGN = 64


class Address(NamedTuple):
    """Where a process listens, and the key."""

    path: str
    key: bytes


def listen(answer: Answer) -> Address | None:
    """Have one caller's calls answered in a thread, one after the other, until the caller is gone.
    What `answer` is given of arrays is there until it returns. None where there are no such
    sockets."""
    folder = tempfile.mkdtemp(prefix="gguflow-")  # which nobody else may enter
    address = Address(os.path.join(folder, "stage"), secrets.token_bytes(32))
    try:
        listener = Listener(address.path, "AF_UNIX", authkey=address.key)
    except (ValueError, OSError):
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def serve() -> None:
        with suppress(Exception), listener, listener.accept() as caller:
            end = _End(caller)
            late = _FINE  # what went wrong in a call that nobody waited for
            while end.comes():
                name, args, is_asked = end.receive()
                found = _answered(answer, name, args) if late is _FINE else late
                if is_asked:
                    end.send(found)
                    late = _FINE
                elif found[0]:
                    late = found

    def serve_and_forget() -> None:
        try:
            serve()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    Thread(target=serve_and_forget, name="stage", daemon=True).start()
    return address


def _answered(answer: Answer, name: str, args: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "", answer(name, args)
    except ClusterError as e:
        return "cluster", str(e)
    except Exception as e:
        return "other", str(e) or type(e).__name__


class Line:
    """The caller's end. who: is asked, for messages."""

    def __init__(self, connection: Connection, who: str) -> None:
        self._end, self._who = _End(connection), who
        self._lock = threading.Lock()
        self._connection = connection

    @classmethod
    def to(cls, address: Address | None, who: str) -> Line | None:
        """None where nobody listens there."""
        if address is None or not os.path.exists(address.path):
            return None
        try:
            return cls(Client(address.path, "AF_UNIX", authkey=address.key), who)
        except Exception:  # somebody else's socket
            return None

    def ask(self, patience: float, name: str, *args: Any) -> Any:
        """The answer to a call; arrays in it are there until the next one. Raises ClusterError for
        one that has none within so many seconds, for a process that is gone, and for what went
        wrong there."""
        with self._lock:
            try:
                self._end.send((name, args, True))
                if not self._end.comes(patience):
                    raise ClusterError(f"{self._who} gave no answer for {patience:g} s")
                error, value = self._end.receive()
            except _GONE as e:
                raise self._lost(e) from None
        if error:
            raise ClusterError(value if error == "cluster" else f"{self._who}: {value}")
        return value

    def tell(self, name: str, *args: Any) -> None:
        """A call that nobody waits for: what goes wrong in it is what the next `ask` raises. Raises
        ClusterError for a process that is gone."""
        with self._lock:
            try:
                self._end.send((name, args, False), beside=False)
            except _GONE as e:
                raise self._lost(e) from None

    def _lost(self, e: BaseException) -> ClusterError:
        return ClusterError(f"{self._who} is lost: {e or 'its process has ended'}")


class _End:
    """Sends and receives messages: pickled, with what arrays hold beside."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sent: mmap.mmap | None = None
        self._seen: mmap.mmap | None = None
        # A connection's own `poll` makes a selector for every call, which takes as long as a call.
        self._arrivals = select.poll()
        self._arrivals.register(connection.fileno(), select.POLLIN)
        self._awake_s = AWAKE_S if cores() >= SPARE else 0.0

    def comes(self, patience: float | None = None) -> bool:
        """Wait for the next message, at most so many seconds; at first without sleeping, where that
        takes nothing from others."""
        until = time.perf_counter() + self._awake_s
        while time.perf_counter() < until:
            if self._arrivals.poll(0):
                return True
        return bool(self._arrivals.poll(None if patience is None else 1000 * patience))

    def send(self, value: Any, beside: bool = True) -> None:
        """beside: arrays may go through the memory, for the other has read what is there."""
        buffers: list[pickle.PickleBuffer] = []

        def within(b: pickle.PickleBuffer) -> bool:
            """Whether it stays within the pickled bytes."""
            if not beside or b.raw().nbytes < LEAST:
                return True
            buffers.append(b)
            return False

        head = pickle.dumps(value, protocol=5, buffer_callback=within)
        raws = [b.raw() for b in buffers]
        starts, end = _starts([r.nbytes for r in raws])
        new = self._grow(end)
        if end and self._sent is None:  # there is no such memory
            self._connection.send_bytes(pickle.dumps((pickle.dumps(value, protocol=5), [], None)))
            return
        for start, raw in zip(starts, raws, strict=True):
            assert self._sent is not None
            into = np.frombuffer(self._sent, np.uint8, raw.nbytes, start)
            into[:] = np.frombuffer(raw, np.uint8)
        self._connection.send_bytes(pickle.dumps((head, [r.nbytes for r in raws], new)))

    def receive(self) -> Any:
        head, sizes, new = pickle.loads(self._connection.recv_bytes())
        if new is not None:
            with open(new, "r+b") as f:
                self._seen = mmap.mmap(f.fileno(), 0)
            os.unlink(new)
        if not sizes:
            return pickle.loads(head)
        assert self._seen is not None
        here = memoryview(self._seen)
        starts, _ = _starts(sizes)
        found = [here[at : at + n] for at, n in zip(starts, sizes, strict=True)]
        return pickle.loads(head, buffers=found)

    def _grow(self, nbytes: int) -> str | None:
        """Have room for so many bytes; the file it is in if that is another one now."""
        if nbytes == 0 or (self._sent is not None and len(self._sent) >= nbytes):
            return None
        room = 1 << (nbytes - 1).bit_length()
        self._sent = None
        with suppress(OSError):
            file, path = tempfile.mkstemp(dir=_MEMORY if os.path.isdir(_MEMORY) else None)
            try:
                _reserve(file, room)
                self._sent = mmap.mmap(file, room)
                return path
            except OSError:
                os.unlink(path)
            finally:
                os.close(file)
        return None


def _reserve(file: int, nbytes: int) -> None:
    """So many bytes of a file; where the system can say so, an OSError now if there are none."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, nbytes)
    else:
        os.ftruncate(file, nbytes)


def _starts(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where so many bytes each begin one after the other, and their end."""
    starts, at = [], 0
    for n in sizes:
        starts.append(at)
        at += -(-n // _ALIGN) * _ALIGN
    return starts, at
