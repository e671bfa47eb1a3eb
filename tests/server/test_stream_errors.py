"""An error in the middle of a stream has the form of the other events there."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from serving import Running

from gguflow.engine.constraints.error import ConstraintError
from gguflow.engine.constraints.masker import Masker

openai = pytest.importorskip("openai", reason="openai is missing: pip install 'gguflow[dev]'")

FORM = {"type": "json_object"}


@pytest.fixture
def fails_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constraint that fails when some of the answer has been sent."""
    check, calls = Masker.__call__, [0]

    def fail(self: Masker, ids: Any, logits: np.ndarray) -> None:
        calls[0] += 1
        if calls[0] > 5:
            raise ConstraintError("response_format: too costly")
        check(self, ids, logits)

    monkeypatch.setattr(Masker, "__call__", fail)


def events(text: bytes) -> list[tuple[str, Any]]:
    """(name, data) of each event."""
    found = []
    for part in text.decode().strip().split("\n\n"):
        name, data = part.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_of_a_response(server: Running, fails_late: None) -> None:
    body = {"input": "Hi", "stream": True, "text": {"format": FORM}}
    status, _, text = server.post("/v1/responses", body)
    found = events(text)
    assert status == 200 and len(found) > 3
    assert [data["sequence_number"] for _, data in found] == [*range(len(found))]
    name, error = found[-1]
    assert name == "error" and error == {
        "type": "error", "sequence_number": len(found) - 1, "code": "constraint_failed",
        "message": "text.format: too costly", "param": "text.format",
    }  # fmt: skip


def test_of_a_response_to_the_official_client(server: Running, fails_late: None) -> None:
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    with client:
        *_, last = client.responses.create(
            model="default", input="Hi", stream=True, text={"format": FORM}
        )
    assert isinstance(last, openai.types.responses.ResponseErrorEvent)
    assert (last.code, last.param) == ("constraint_failed", "text.format")


def test_of_a_response_that_takes_too_long(slow_answers: None) -> None:
    server = Running(timeout=0.5)
    try:
        body = {"input": "Hi", "stream": True, "ignore_eos": True}
        found = events(server.post("/v1/responses", body)[2])
        assert [data["sequence_number"] for _, data in found] == [*range(len(found))]
        assert found[-1][0] == found[-1][1]["type"] == "error"
        assert found[-1][1]["code"] == "request_timeout" and "0.5 s" in found[-1][1]["message"]
        server.wait_idle()
    finally:
        server.stop()


def test_of_a_chat(server: Running, fails_late: None) -> None:
    """There OpenAI has the error's object alone, without a name."""
    messages = [{"role": "user", "content": "Hi"}]
    body = {"messages": messages, "stream": True, "response_format": FORM}
    _, _, text = server.post("/v1/chat/completions", body)
    last = text.decode().strip().split("\n\n")[-1]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == "constraint_failed" and error["param"] == "response_format"
