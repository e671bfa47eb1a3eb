"""Requests made up from the API's own OpenAPI document, right and wrong ones: never a 5xx, and
every answer of a kind the document names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from serving import OPTIONS, Running

from gguflow.server.openapi import openapi

schemathesis = pytest.importorskip(
    "schemathesis", reason="schemathesis is missing: pip install 'gguflow[dev]'"
)

DOCUMENT: Any = schemathesis.openapi.from_dict(openapi())
SHORT, LONG = 6, 1200  # examples of an operation; LONG makes more than 10,000 requests in all
_QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None,
          "derandomize": True}  # fmt: skip


@pytest.fixture(scope="module")
def bounded() -> Iterator[Running]:
    """Answers are short, so that many requests can be made."""
    running = Running(options=OPTIONS, max_output=3, max_choices=4, timeout=20.0)
    yield running
    running.wait_idle()
    running.stop()


def check(case: Any, server: Running) -> None:
    response = case.call(base_url=server.url, timeout=60)
    assert response.status_code < 500, response.text
    methods = DOCUMENT.raw_schema["paths"][case.operation.path]
    if case.method.lower() not in methods:
        assert response.status_code in (400, 405), response.text
        return
    documented = methods[case.method.lower()]["responses"]
    assert str(response.status_code) in documented, response.text
    if response.status_code >= 400:
        error = response.json()["error"]
        assert error["message"] and error["type"]
    elif response.status_code == 200:
        kind = response.headers["content-type"][0].partition(";")[0]
        assert kind in documented["200"]["content"]


@DOCUMENT.parametrize()
@settings(max_examples=SHORT, phases=(Phase.generate,), **_QUIET)
def test_some_requests(case: Any, bounded: Running) -> None:
    check(case, bounded)


@pytest.mark.slow
@DOCUMENT.parametrize()
@settings(max_examples=LONG, phases=(Phase.explicit, Phase.generate), **_QUIET)
def test_many_requests(case: Any, bounded: Running) -> None:
    check(case, bounded)
