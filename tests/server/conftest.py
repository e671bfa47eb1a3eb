"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

for package in ("starlette", "uvicorn", "httptools", "llguidance", "prometheus_client", "pydantic"):
    pytest.importorskip(package, reason=f"{package} is missing: pip install 'gguflow[serve]'")

from serving import Running  # noqa: E402


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A server over the bundled model, shared by all tests that leave it as it was."""
    running = Running()
    yield running
    running.wait_idle()
    running.stop()
