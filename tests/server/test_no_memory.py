"""A connection for which there is no memory: the server ends, for it could accept no other. A head
for which there is none is not the fault of who sent it."""

from __future__ import annotations

import asyncio
import json
import threading
from http.client import HTTPConnection, HTTPException
from typing import Any

import pytest
from serving import Running

from gguflow.engine.pool import Pool
from gguflow.server import completions
from gguflow.server.http import BoundedProtocol


@pytest.mark.parametrize(
    ("context", "ends"),
    [
        ({"exception": MemoryError()}, True),
        ({"exception": MemoryError(), "task": None}, False),
        ({"exception": ValueError("x")}, False),
        ({}, False),
    ],
)
def test_what_the_loop_could_not_do(
    context: dict[str, object], ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Running()
    loop = asyncio.new_event_loop()
    told: list[object] = []
    monkeypatch.setattr(loop, "default_exception_handler", told.append)
    try:
        server.server._unhandled(loop, {"message": "Unhandled", **context})
        assert server.server.should_exit is ends and len(told) == 1
        if ends:
            server._thread.join(30)
            assert not server._thread.is_alive()
            assert server.service.failure is context["exception"]
    finally:
        loop.close()
        server.stop()


@pytest.mark.parametrize(("reason", "status"), [(MemoryError, 503), (ValueError, 400)])
def test_a_head_that_cannot_be_kept(
    reason: type[Exception], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = BoundedProtocol.on_header

    def on_header(self: BoundedProtocol, name: bytes, value: bytes) -> None:
        if name == b"x-fails":
            raise reason
        keep(self, name, value)

    monkeypatch.setattr(BoundedProtocol, "on_header", on_header)
    server = Running()
    try:
        for headers, expected in (({"x-fails": "1"}, status), ({}, 200)):
            connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
            connection.request("GET", "/health", headers=headers)
            answer = connection.getresponse()
            assert answer.status == expected
            body = json.loads(answer.read())
            assert expected == 200 or body["error"]["message"]
            connection.close()
    finally:
        server.stop()


def test_a_connection_that_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is closed: nobody would read what comes by it."""
    arm, failures = BoundedProtocol._arm, [MemoryError()]

    def _arm(self: BoundedProtocol) -> None:
        if failures:
            raise failures.pop()
        arm(self)

    monkeypatch.setattr(BoundedProtocol, "_arm", _arm)
    server = Running()
    try:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
        with pytest.raises((OSError, HTTPException)) as found:
            connection.request("GET", "/health")
            connection.getresponse()
        assert not isinstance(found.value, TimeoutError) and not failures
        connection.close()
        assert server.get("/health")[0] == 200
    finally:
        server.stop()


def test_requests_start_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gets no memory for its first call would hold up the event loop for ever."""
    find, met = completions.prompt_ids, threading.Barrier(3, timeout=20)

    def prompt_ids(*args: Any) -> Any:
        met.wait()  # each in a thread of its own
        return find(*args)

    monkeypatch.setattr(completions, "prompt_ids", prompt_ids)
    server, body = Running(), {"prompt": ["Once"], "max_tokens": 2}
    try:
        with Pool(3) as clients:
            clients.fill()
            monkeypatch.setattr(threading.Thread, "start", None)
            answers = [*clients.map(lambda _: server.post("/v1/completions", body), range(3))]
            monkeypatch.undo()
        assert [status for status, *_ in answers] == [200] * 3
    finally:
        server.stop()
