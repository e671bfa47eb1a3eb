"""Bodies of very many objects: refused by name before they take a hundred times their size."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from gguflow.server.errors import ApiError
from gguflow.server.schema.base import MAX_NESTED, Body, parse
from gguflow.server.schema.chat import ChatBody, CompletionBody
from gguflow.server.schema.responses import ResponsesBody

SAY = {"role": "user"}
BODY = 8 << 20  # the server's own bound
PART = '{"type":"summary_text","text":""}'
SHAPES = {
    "items": ('{"input":[%s]}', '{"type":"reasoning"}'),
    "parts": ('{"input":[{"type":"reasoning","content":[%s]}]}', PART),
    "parts of items": (
        '{"input":[%s]}', '{"type":"reasoning","summary":[' + f"{PART}," * 23 + PART + "]}",
    ),
    "fields nobody knows": ('{"input":[{"type":"reasoning","a":[%s]}]}', "{}"),
}  # fmt: skip
CHILD = """
import resource, sys
from gguflow.server.errors import ApiError
from gguflow.server.schema.base import parse
from gguflow.server.schema.responses import ResponsesBody
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
data = sys.stdin.buffer.read()
before = peak()
try:
    parse(ResponsesBody, data)
except ApiError as error:
    print(peak() - before >> 10, error.status, error.param, error.message, sep="|")
"""


def filled(shape: str) -> bytes:
    body, item = SHAPES[shape]
    return (body % ",".join([item] * (BODY // (len(item) + 1)))).encode()


@pytest.mark.parametrize("shape", SHAPES)
def test_very_many_objects_take_little_memory(shape: str) -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], input=filled(shape), capture_output=True)
    taken, status, param, message = done.stdout.decode().strip().split("|")
    assert (status, param) == ("400", "input"), done.stderr
    assert message == f"input: the body has more than {MAX_NESTED} objects and lists"
    assert int(taken) < 32, "MiB"


def test_as_many_as_may_be_take_a_bounded_part() -> None:
    body, item = SHAPES["parts"]
    data = (body % ",".join([item] * (MAX_NESTED - 4))).encode()
    code = CHILD.replace("except", "print(peak() - before >> 10)\nexcept")
    code = code.replace("    parse(", "    body = parse(").replace("\nprint(", "\n    print(")
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True)
    assert int(done.stdout) < 400, done.stderr


@pytest.mark.parametrize(("cls", "body"), [
    (ChatBody, {"messages": [SAY | {"content": [{"type": "text", "text": "a"}]}] * 9999}),
    (ChatBody, {"messages": [SAY | {"content": "{[" * 10**5 + '\\"[{'}]}),
    (ChatBody, {"messages": [SAY | {"content": '\\\\"{"' * 10**5}]}),
    (CompletionBody, {"prompt": "[" * 10**6}),
    (ResponsesBody, {"input": [SAY | {"content": '"[' * 10**5}, SAY | {"content": "{[" * 10**5}]}),
])  # fmt: skip
def test_brackets_in_texts_do_not_count(cls: type[Body], body: Any) -> None:
    assert parse(cls, json.dumps(body).encode()).model_dump(exclude_unset=True) == body


@pytest.mark.parametrize(("cls", "text", "param"), [
    (ChatBody, '{"a\\\\": "\\"[", "tools": [%s], "messages": []}', "tools"),
    (CompletionBody, "[%s]", "body"),
    (CompletionBody, '{"prompt": "a", "logit_bias" : {"a": {"prompt": [%s]}}}', "logit_bias"),
])  # fmt: skip
def test_the_field_is_named(cls: type[Body], text: str, param: str) -> None:
    with pytest.raises(ApiError, match="more than 50000 objects and lists") as error:
        parse(cls, (text % ",".join(["{}"] * MAX_NESTED)).encode())
    assert error.value.param == param and error.value.status == 400


def test_counting_takes_no_longer_than_a_body_is_long() -> None:
    for piece in ('\\"', "\\\\", '"', '"" ', '"a":', " ", "a"):
        data = ("{" * MAX_NESTED + '"' + piece * (BODY // 4 // len(piece)) + "{").encode()
        began = time.process_time()
        with pytest.raises(ApiError):
            parse(CompletionBody, data)
        assert time.process_time() - began < 5


def test_a_list_that_is_too_long_is_told_as_one() -> None:
    body = {"input": [{"type": "reasoning"}] * 10_001}
    with pytest.raises(ApiError, match="^input: List should have at most 10000 items"):
        parse(ResponsesBody, json.dumps(body).encode())
