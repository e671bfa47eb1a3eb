"""Calls to a process of the same machine over a socket of its own: they take a tenth of what calls
of actors do, which go by way of Ray's own processes.

Both ends prove that they know a key, which came by way of Ray.
"""

from __future__ import annotations

import os
import pickle
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NamedTuple

from .errors import ClusterError

Answer = Callable[[str, tuple[Any, ...]], Any]
_GONE = (EOFError, OSError)


class Address(NamedTuple):
    """Where a process listens, and the key."""

    path: str
    key: bytes


def listen(answer: Answer) -> Address | None:
    """Have one caller's calls answered in a thread, one after the other, until the caller is gone.
    None where there are no such sockets."""
    folder = tempfile.mkdtemp(prefix="gguflow-")  # which nobody else may enter
    address = Address(os.path.join(folder, "stage"), secrets.token_bytes(32))
    try:
        listener = Listener(address.path, "AF_UNIX", authkey=address.key)
    except (ValueError, OSError):
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def serve() -> None:
        with suppress(Exception), listener, listener.accept() as caller:
            while True:
                name, args = _receive(caller)
                _send(caller, _answered(answer, name, args))

    def serve_and_forget() -> None:
        try:
            serve()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    threading.Thread(target=serve_and_forget, name="stage", daemon=True).start()
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
        self._connection, self._who = connection, who
        self._lock = threading.Lock()

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
        """The answer to a call. Raises ClusterError for one that has none within so many seconds,
        for a process that is gone, and for what went wrong there."""
        with self._lock:
            try:
                _send(self._connection, (name, args))
                if not self._connection.poll(patience):
                    raise ClusterError(f"{self._who} gave no answer for {patience:g} s")
                error, value = _receive(self._connection)
            except _GONE as e:
                raise ClusterError(f"{self._who} is lost: {e or 'its process has ended'}") from None
        if error:
            raise ClusterError(value if error == "cluster" else f"{self._who}: {value}")
        return value


def _send(connection: Connection, value: Any) -> None:
    """Arrays go as they lie in memory, behind the rest."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raws = [b.raw() for b in buffers]
    connection.send_bytes(pickle.dumps((head, [r.nbytes for r in raws])))
    for r in raws:
        if r.nbytes:
            connection.send_bytes(r)


def _receive(connection: Connection) -> Any:
    head, sizes = pickle.loads(connection.recv_bytes())
    buffers = [bytearray(n) for n in sizes]
    for b in buffers:
        if b:
            connection.recv_bytes_into(b)
    return pickle.loads(head, buffers=buffers)
