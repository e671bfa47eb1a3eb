"""A connection for which there is no memory: the server ends, for it could accept no other."""

from __future__ import annotations

import asyncio

import pytest
from serving import Running


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
