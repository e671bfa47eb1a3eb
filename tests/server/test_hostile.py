"""What no client should send: every answer is a 4xx, and the server goes on."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from serving import OPTIONS, Running

from gguflow.cli.load import bundled_model
from gguflow.engine.constraints.error import ConstraintError
from gguflow.engine.constraints.masker import Masker
from gguflow.engine.text import StopStrings
from gguflow.server.config import ModelSpec
from gguflow.server.schema.base import Body
from gguflow.server.schema.chat import ChatBody, CompletionBody
from gguflow.server.schema.responses import ResponsesBody

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GOOD = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def strict() -> Iterator[Running]:
    """A server with short times and small bodies."""
    running = Running(header_timeout=0.5, body_timeout=0.5, max_body=1 << 20)
    yield running
    running.wait_idle()
    running.stop()


def raw(server: Running, *parts: bytes, pause: float = 0.0, close: bool = False) -> bytes:
    """What comes back for bytes sent one part after the other, until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), 20) as s:
        for part in parts:
            try:
                s.sendall(part)
            except OSError:
                break
            time.sleep(pause)
        if close:
            s.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while data := s.recv(65536):
                found += data
        except OSError:
            pass
        return found


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def still_works(server: Running) -> None:
    assert server.post(TEXT, GOOD)[0] == 200


BIASES = {str(10**6 + i): 1 for i in range(50_000)}
BODIES: list[tuple[str, bytes]] = [
    ("empty", b""),
    ("no JSON", b"hello"),
    ("half", b'{"messages": ['),
    ("invalid UTF-8", b'{"prompt": "\xff\xfe"}'),
    ("half a character", b'{"prompt": "\xe2\x98"}'),
    ("lone surrogate", b'{"prompt": "\\ud800"}'),
    ("UTF-16", '{"prompt": "a"}'.encode("utf-16")),
    ("NaN", b'{"prompt": "a", "temperature": NaN}'),
    ("infinity", b'{"prompt": "a", "temperature": 1e999}'),
    ("huge number", b'{"prompt": "a", "seed": ' + b"9" * 100_000 + b"}"),
    ("deep lists", b'{"prompt": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    ("deep objects", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    ("an array", b"[1, 2]"),
    ("null", b"null"),
    ("a string", b'"prompt"'),
    ("twice", b'{"prompt": "a"}{"prompt": "b"}'),
    ("long stop", json.dumps({"prompt": "a", "stop": "x" * 1_000_000}).encode()),
    ("long stops", json.dumps({"prompt": "a", "stop": ["x" * 1_000_000] * 3}).encode()),
    ("many stops", json.dumps({"prompt": "a", "stop": ["x"] * 100_000}).encode()),
    ("stops that are long together",
     json.dumps({"prompt": "a", "stop": [str(i) * 2000 for i in range(10, 15)]}).encode()),
    ("many prompts", json.dumps({"prompt": ["a"] * 100_000}).encode()),
    ("many ids", json.dumps({"prompt": [1] * 300_000}).encode()),
    ("mixed ids", json.dumps({"prompt": [1, "a"] * 100_000}).encode()),
    ("long prompt", json.dumps({"prompt": "word " * 150_000}).encode()),
    ("many biases",
     json.dumps({"prompt": "a", "logit_bias": BIASES}).encode()),
    ("a bias of many digits", json.dumps({"prompt": "a", "logit_bias": {"9" * 5000: 1}}).encode()),
    ("two names of a token", b'{"prompt": "a", "logit_bias": {"5": -100, "05": 1}}'),
    ("repetitions of repetitions", json.dumps({"prompt": "a", "structured_outputs": {
        "regex": "(" * 500 + "a" + "{999999999})" * 500}}).encode()),
    ("a terminal of repetitions of repetitions", json.dumps({"prompt": "a", "structured_outputs": {
        "grammar": 'start: A~100000\nA: ("x" "y")~100000'}}).encode()),
    ("a chain of rules", json.dumps({"prompt": "a", "grammar": "root ::= r0\n" + "".join(
        f"r{i} ::= r{i + 1}\n" for i in range(25_000))}).encode()),
    ("empty lines of a grammar", json.dumps({"prompt": "a", "grammar": "\n" * 499_999}).encode()),
    ("objects", b'{"prompt": "a", "metadata": [' + b"{}," * 10**6 + b"{}]}"),
    ("NaN in any field", b'{"prompt": "a", "metadata": {"a": [NaN]}}'),
    ("infinity in any field", b'{"prompt": "a", "metadata": {"a": [-1e999]}}'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body"), BODIES, ids=[n for n, _ in BODIES])
def test_bodies(server: Running, name: str, body: bytes) -> None:
    status, headers, answer = server.post(TEXT, body)
    assert 400 <= status < 500, (name, status, answer)
    assert headers["content-type"] == "application/json" and answer["error"]["message"]
    assert len(json.dumps(answer)) < 4000


@pytest.mark.parametrize(("cls", "body"), [
    (ChatBody, {"messages": [{"role": "user", "content": [{}] * 1000}]}),
    (ChatBody, {"messages": [{"role": "user", "content": "a"}], "tools": [{}] * 1000}),
    (CompletionBody, {"prompt": "a", "logit_bias": dict.fromkeys(map(str, range(1000)), "a")}),
    (ResponsesBody, {"input": [{"type": "reasoning", "content": [{}] * 1000}]}),
    (ResponsesBody, {"input": "a", "metadata": dict.fromkeys(map(str, range(1000)), 1)}),
])  # fmt: skip
def test_one_fault_of_many_is_looked_at(cls: type[Body], body: Any) -> None:
    """Each that is found takes a kilobyte, and a large body has room for millions."""
    with pytest.raises(ValidationError) as error:
        cls.model_validate_json(json.dumps(body))
    assert error.value.error_count() < 40


def test_stop_strings_are_made_ready_once(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each answer to a request: what finds them takes more memory than they do."""
    made, init = list[Any](), StopStrings.__init__

    def counted(self: StopStrings, stops: Sequence[str]) -> None:
        made.append(stops)
        init(self, stops)

    monkeypatch.setattr(StopStrings, "__init__", counted)
    status, _, answer = server.post(TEXT, GOOD | {"prompt": ["a", "b"], "n": 3, "stop": ["x", "y"]})
    assert status == 200 and len(answer["choices"]) == 6 and made == [["x", "y"]]


def test_nothing_of_it_stays(server: Running) -> None:
    still_works(server)
    server.wait_idle()


def test_messages_that_are_large(server: Running) -> None:
    many = [{"role": "user", "content": "a"}] * 10_001
    deep: Any = {"type": "object"}
    for _ in range(100):
        deep = {"type": "object", "properties": {"a": deep}}
    form = {"type": "json_schema", "json_schema": {"schema": deep}}
    wide = {"enum": [f"{i:060d}" for i in range(20_000)]}
    one = [{"role": "user", "content": "a"}]
    changes: list[dict[str, Any]] = [
        {"messages": many},
        {"messages": one, "response_format": form},
        {"messages": one, "json_schema": wide},
        {"messages": one, "structured_outputs": {"regex": "(" * 20_000 + ")" * 20_000}},
        {"messages": one, "structured_outputs": {"regex": "((a{1,9999}){1,9999}){1,9999}b"}},
        {"messages": [{"role": "user", "content": "x " * 500_000}]},
    ]
    for change in changes:
        began = time.monotonic()
        status, _, answer = server.post(CHAT, {"max_tokens": 2, **change})
        # A regular expression that is only large is followed as far as it goes.
        assert 400 <= status < 500 or "structured_outputs" in change, str(answer)[:300]
        assert time.monotonic() - began < 20
    still_works(server)


@pytest.mark.parametrize("path", [
    "/../../etc/passwd", "/v1/../v1/models", "//v1/models", "/v1/models/../../health",
    "/v1/models/%2e%2e%2f%2e%2e", "/v1/models/%00", "/v1/models/%ff%fe", "/%", "/v1/%zz",
    "/v1/models/" + "a" * 5000, "/live/requests/..%2f", "/page/main.js", "/V1/models",
    "/v1/models/",
    "/static/../app.py", "/v1/chat/completions/", "/.env",
])  # fmt: skip
def test_paths(server: Running, path: str) -> None:
    answer = raw(server, f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    assert status_of(answer) in (400, 404, 405), answer[:200]
    assert b"root:" not in answer


@pytest.mark.parametrize("head", [
    b"\x00\x01\x02\x03\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\nX",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 200,  # the beginning of TLS
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcde",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"b" * 200_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % i for i in range(20_000)) + b"\r\n",
])  # fmt: skip
def test_heads(strict: Running, head: bytes) -> None:
    answer = raw(strict, head)
    assert 400 <= status_of(answer) < 500 or answer == b"", answer[:200]
    still_works(strict)


def test_slowloris(strict: Running) -> None:
    """A head, and a body, that come a byte at a time."""
    began = time.monotonic()
    assert status_of(raw(strict, b"GET / HTTP/1.1\r\nx: ", *[b"a"] * 8, pause=0.1)) == 408
    assert status_of(raw(strict, b"GET /health HTTP/1.1\r\nhost: x\r\n", pause=0.2)) == 408
    assert raw(strict) == b"" or status_of(raw(strict)) == 408  # nothing at all is sent
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    slow = raw(strict, head + b"content-length: 100\r\n\r\n{", b'"', b"p", pause=0.1)
    assert status_of(slow) == 408 and b"did not come in time" in slow
    assert time.monotonic() - began < 10
    still_works(strict)


def test_empty_lines_after_an_answer_begin_nothing(strict: Running) -> None:
    began = time.monotonic()
    answer = raw(strict, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b"\r\n", pause=0.1)
    assert status_of(answer) == 200 and time.monotonic() - began < 4  # it ended


def test_what_follows_a_body_is_no_header() -> None:
    server = Running(keys=frozenset({"secret"}))
    try:
        head = b"POST /tokenize HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        chunked = b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        body = b'd\r\n{"content":1}\r\n0\r\nauthorization: Bearer secret\r\n\r\n'
        assert status_of(raw(server, head + chunked + body)) == 401
    finally:
        server.stop()


def test_huge_bodies(strict: Running) -> None:
    body = json.dumps({"prompt": "x" * (2 << 20)}).encode()
    status, _, answer = strict.post(TEXT, body)
    assert status == 413 and "1048576" in answer["error"]["message"]
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    assert status_of(raw(strict, head, *[chunk] * 400)) in (0, 413)
    still_works(strict)


def test_kinds_and_methods(server: Running) -> None:
    body = json.dumps(GOOD).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        status, _, answer = server.post(TEXT, body, {"content-type": kind})
        assert status == 415 and answer["error"]["type"] == "invalid_request_error"
    for method, path in (("GET", TEXT), ("DELETE", "/v1/models"), ("PUT", CHAT), ("POST", "/")):
        status, headers, _ = server.request(method, path, None, {})
        assert status == 405 and headers["allow"]
    assert server.request("BREW", "/health", None, {})[0] in (400, 405)


def test_pages_of_other_sites(server: Running) -> None:
    headers = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}
    status, _, answer = server.post(TEXT, GOOD, headers)
    assert status == 403 and answer["error"]["code"] == "cross_site"
    assert server.post(TEXT, GOOD, {"sec-fetch-site": "same-origin"})[0] == 200
    # Over plain http browsers tell only where the page is from.
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{server.port + 1}"):
        assert server.post(TEXT, GOOD, {"origin": origin})[0] == 403
    assert server.post(TEXT, GOOD, {"origin": f"http://127.0.0.1:{server.port}"})[0] == 200


def test_names_a_server_is_not_called_by() -> None:
    server = Running(hosts=("localhost", "127.0.0.1"), origins=("https://ours.example",))
    try:
        assert server.get("/health")[0] == 200
        status, _, answer = server.get("/health", {"host": "rebound.example"})
        assert status == 421 and answer["error"]["code"] == "wrong_host"
        ours = {"origin": "https://ours.example", "sec-fetch-site": "cross-site"}
        status, headers, _ = server.post(TEXT, GOOD, ours)
        assert status == 200 and headers["access-control-allow-origin"] == "https://ours.example"
        # A browser asks before it sends what a form could not.
        asks = {"access-control-request-method": "POST",
                "access-control-request-headers": "authorization,x-stainless-os"}  # fmt: skip
        status, headers, _ = server.request("OPTIONS", TEXT, None, asks | ours)
        assert status == 204
        assert headers["access-control-allow-headers"] == "authorization,x-stainless-os"
        theirs = {"origin": "https://theirs.example", "sec-fetch-site": "cross-site"}
        status, headers, _ = server.request("OPTIONS", TEXT, None, asks | theirs)
        assert status == 405 and "access-control-allow-origin" not in headers
    finally:
        server.stop()


def test_keys() -> None:
    server = Running(keys=frozenset(("one", "two")))
    try:
        paths = ("/", "/v1/models", "/metrics", "/openapi.json", "/live", "/nothing", "/live/ops")
        for path in paths:
            for value in (
                "",
                "Bearer",
                "Bearer no",
                "Basic bm86bm8=",
                "one",
                "Basic !",
                "Bearer onetwo",
            ):
                headers = {"authorization": value} if value else {}
                status, found, answer = server.get(path, headers)
                assert status == 401 and "www-authenticate" in found, (path, value)
                assert answer["error"]["code"] == "invalid_api_key"
        assert (
            server.post(TEXT, GOOD)[0] == 401
            and server.request("OPTIONS", TEXT, None, {})[0] == 401
        )
        assert server.get("/health")[0] == 200
        for value in ("Bearer one", "bearer two", "Basic eDpvbmU="):  # x:one
            assert server.get("/v1/models", {"authorization": value})[0] == 200
        assert server.post(TEXT, GOOD, {"authorization": "Bearer two"})[0] == 200
    finally:
        server.stop()


def test_a_request_that_takes_too_long() -> None:
    server = Running(timeout=0.3)
    try:
        body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "n": 8}
        status, _, answer = server.post(TEXT, body)
        assert status == 408 and "0.3 s" in answer["error"]["message"]
        status, _, text = server.post(TEXT, body | {"stream": True})
        assert status == 200 and b"longer than 0.3 s" in text and b"[DONE]" not in text
        server.wait_idle()
        still_works(server)
    finally:
        server.stop()


def test_a_template_that_loops_or_refuses() -> None:
    """A chat template is somebody's program: it ends at its bounds, and others go on meanwhile."""
    loop = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
    said = "{% if messages[0].content == 'loop' %}" + loop + "{% endif %}{{ messages[0].content }}"
    refuse = "{% if messages[0].content == 'no' %}{{ raise_exception('not you') }}{% endif %}"
    spec = ModelSpec("m", bundled_model(), OPTIONS, refuse + said)
    server = Running([spec])

    def chat(text: str) -> tuple[int, Any]:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 3, "temperature": 0}
        status, _, answer = server.post(CHAT, body)
        return status, answer

    try:
        alone = chat("Hello")[1]["choices"]
        with ThreadPoolExecutor(4) as pool:
            loops = [pool.submit(chat, "loop") for _ in range(2)]
            others = [pool.submit(chat, "Hello") for _ in range(2)]
            assert all(o.result()[1]["choices"] == alone for o in others)
        for status, answer in [x.result() for x in loops]:
            assert status == 400 and answer["error"]["code"] == "template_error"
        status, answer = chat("no")
        assert status == 400 and "not you" in answer["error"]["message"]
        assert answer["error"]["param"] == "messages"
    finally:
        server.stop()


def test_a_fault_of_one_request_is_its_own(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constraint that fails while tokens are chosen, and logits of which nothing is left."""
    alone = server.post(TEXT, GOOD)[2]["choices"]

    def fail(self: Masker, ids: Sequence[int], logits: np.ndarray) -> None:
        raise ConstraintError("grammar: too costly")

    def forbid(self: Masker, ids: Sequence[int], logits: np.ndarray) -> None:
        logits[:] = -np.inf

    def err(self: Masker, ids: Sequence[int], logits: np.ndarray) -> None:
        raise KeyError("ours")

    for broken, expected, said in (
        (fail, 400, "too costly"), (forbid, 500, "not finite"), (err, 500, "internal"),
    ):  # fmt: skip
        monkeypatch.setattr(Masker, "__call__", broken)
        body = GOOD | {"grammar": 'root ::= "a"'}
        with ThreadPoolExecutor(3) as pool:
            bad = pool.submit(server.post, TEXT, body)
            streamed = pool.submit(server.post, TEXT, body | {"stream": True})
            good = pool.submit(server.post, TEXT, GOOD)
            assert good.result()[2]["choices"] == alone
            status, _, answer = bad.result()
            assert status == expected and said in answer["error"]["message"]
            status, _, text = streamed.result()
            assert status == expected or b'data: {"error"' in text
    server.wait_idle()
