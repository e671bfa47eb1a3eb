"""Readers that take nothing of their answer: their connection ends, and nothing stays in work."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import pytest
from serving import Running

TEXT = "/v1/completions"
LIMIT = 0.7  # seconds
STREAM = {"prompt": "Once", "max_tokens": 480, "ignore_eos": True, "stream": True, "logprobs": 20}


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    """A server with a short limit, whose kernel keeps little of what nobody takes."""
    running = Running(timeout=LIMIT)
    running._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections inherit it
    yield running
    running.wait_idle()
    running.stop()


def unread(server: Running, path: str, body: dict[str, Any], *headers: str) -> socket.socket:
    """A connection that has sent a request, and takes nothing of its answer."""
    state = server.server.server_state
    before = state.total_requests
    data = json.dumps(body).encode()
    head = ["host: x", "content-type: application/json", f"content-length: {len(data)}", *headers]
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    s.settimeout(20)
    s.connect(("127.0.0.1", server.port))
    s.sendall("\r\n".join([f"POST {path} HTTP/1.1", *head, "", ""]).encode() + data)
    while not state.tasks and state.total_requests == before:  # until it is being answered
        time.sleep(0.001)
    return s


def wait_closed(server: Running, seconds: float = 4.0) -> None:
    """Until the server has no connection and answers nothing."""
    end, state = time.monotonic() + seconds, server.server.server_state
    while state.connections or state.tasks:
        assert time.monotonic() < end, "a connection stays"
        time.sleep(0.02)


def rest(s: socket.socket) -> bytes:
    """What still comes."""
    found = b""
    try:
        while data := s.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


def test_of_a_stream(hasty: Running, caplog: pytest.LogCaptureFixture) -> None:
    wait_closed(hasty)
    with unread(hasty, TEXT, STREAM | {"n": 4}) as s:
        wait_closed(hasty)
        hasty.wait_idle()  # its sequences, pages and places are free again
        assert b"[DONE]" not in rest(s)
    assert "its reader was behind for 0.7 s" in caplog.text


@pytest.mark.parametrize("n", [120_000, 11_000], ids=["large", "below the mark"])
@pytest.mark.parametrize("header", ["connection: keep-alive", "connection: close"])
def test_of_a_whole_answer(
    hasty: Running, n: int, header: str, caplog: pytest.LogCaptureFixture
) -> None:
    wait_closed(hasty)
    body = {"content": "word " * (n // 5), "with_pieces": True}
    with unread(hasty, "/tokenize", body, header) as s:
        wait_closed(hasty)
        assert b'"count"' not in rest(s)
    assert "its reader was behind for 0.7 s" in caplog.text


def test_who_reads_late_gets_all(hasty: Running, caplog: pytest.LogCaptureFixture) -> None:
    """And may ask again over the same connection, for longer than the limit altogether."""
    wait_closed(hasty)
    body = {"content": "word " * 5000, "with_pieces": True}
    whole = hasty.post("/tokenize", body)[2]
    data = json.dumps(body).encode()
    head = f"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode()
    with unread(hasty, "/tokenize", body) as s:
        for i in range(4):
            if i:
                s.sendall(head + data)
            time.sleep(LIMIT / 2)
            with HTTPResponse(s) as answer:
                answer.begin()
                assert json.loads(answer.read()) == whole
    assert "behind" not in caplog.text
