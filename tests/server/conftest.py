"""Fixtures of the server's tests."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

for package in ("starlette", "uvicorn", "httptools", "llguidance", "prometheus_client", "pydantic"):
    pytest.importorskip(package, reason=f"{package} is missing: pip install 'gguflow[serve]'")

from serving import Running  # noqa: E402

from gguflow.engine.serving.request import Token  # noqa: E402
from gguflow.server.monitor import WatchedEngine  # noqa: E402


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A server over the bundled model, shared by all tests that leave it as it was."""
    running = Running()
    yield running
    running.wait_idle()
    running.stop()


@pytest.fixture
def slow_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 20 ms: an answer of 480 tokens is still being written when a test looks at it."""
    step = WatchedEngine.step

    def slow(engine: WatchedEngine) -> list[Token]:
        time.sleep(0.02)
        return step(engine)

    monkeypatch.setattr(WatchedEngine, "step", slow)
