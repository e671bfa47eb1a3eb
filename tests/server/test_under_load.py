"""Many clients: their own texts, limits kept, nothing left behind by those who hang up."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from serving import Running, free_text

from gguflow.engine.load.random import random_model
from gguflow.engine.options import Options

TEXT = "/v1/completions"
STARTS = ("Once upon a time", "The king said", "In the forest", "A frog", "There was", "My son,")


def ask(i: int) -> dict[str, Any]:
    """Requests of all kinds, the same for the same number."""
    rng = random.Random(i)
    body: dict[str, Any] = {"prompt": " ".join(rng.choices(STARTS, k=rng.randint(1, 12))),
                            "max_tokens": rng.randint(1, 24), "seed": i}  # fmt: skip
    body |= rng.choice([{}, {"temperature": 0}, {"presence_penalty": 1.0}, {"stop": ["the", "!"]},
                        {"logprobs": 2}, {"structured_outputs": {"regex": "[a-z ]{5,30}"}},
                        {"n": 2}, {"echo": True}])  # fmt: skip
    return body


def texts(answer: Any) -> list[Any]:
    return [(c["text"], c["finish_reason"]) for c in answer["choices"]]


def streamed(body: bytes) -> str:
    parts = [p.removeprefix(b"data: ") for p in body.split(b"\n\n") if p and b"[DONE]" not in p]
    return "".join(c["text"] for p in parts for c in json.loads(p)["choices"] if not c["index"])


def test_texts_are_those_each_gets_alone(server: Running) -> None:
    n = 48
    alone = [server.post(TEXT, ask(i))[2] for i in range(n)]

    def one(i: int) -> None:
        if i % 3:
            status, _, answer = server.post(TEXT, ask(i))
            assert status == 200 and texts(answer) == texts(alone[i])
        else:
            status, _, body = server.post(TEXT, ask(i) | {"stream": True})
            assert status == 200 and streamed(body) == free_text(alone[i])

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(one, [*range(n)] * 2))
    server.wait_idle()


def sent(body: dict[str, Any], *headers: str) -> bytes:
    """A request as it goes over the wire."""
    data = json.dumps(body).encode()
    head = ["host: x", "content-type: application/json", f"content-length: {len(data)}", *headers]
    return "\r\n".join([f"POST {TEXT} HTTP/1.1", *head, "", ""]).encode() + data


def hang_up(server: Running, i: int) -> None:
    """Send a request and leave after a while, in the middle of whatever it is at."""
    rng = random.Random(i)
    prompt = " ".join(rng.choices(STARTS, k=20))
    with socket.create_connection(("127.0.0.1", server.port), 10) as s:
        data = sent({"prompt": prompt, "max_tokens": 300, "ignore_eos": True, "stream": i % 2 == 0,
                     "n": 1 + i % 3})  # fmt: skip
        if i % 10 == 0:
            data = data[: rng.randint(1, len(data))]
        s.sendall(data)
        time.sleep(rng.random() * 0.1)
        if i % 4 == 0:  # a reset, not an end
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


@pytest.mark.parametrize("n", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_clients_that_hang_up(server: Running, n: int) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: hang_up(server, i), range(n)))
    server.wait_idle(30)
    assert server.post(TEXT, ask(1))[0] == 200


def test_leaving_cancels_within_two_steps(server: Running) -> None:
    server.wait_idle()
    body = {"prompt": "Once", "max_tokens": 500, "ignore_eos": True, "stream": True}
    engine = server.loaded.engine.engine
    with socket.create_connection(("127.0.0.1", server.port), 10) as s:
        s.sendall(sent(body))
        while b"data:" not in s.recv(65536):
            pass
    while server.service.requests.live:  # the moment the server knows
        pass
    before = engine.stats.n_steps
    server.wait_idle()
    assert engine.stats.n_steps - before <= 2


def test_a_queue_that_is_full() -> None:
    server = Running(options=Options(n_ctx=512, n_seqs=1, n_cache=512), n_queue=2)
    try:
        body = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True}
        with ThreadPoolExecutor(12) as pool:
            found = list(pool.map(lambda _: server.post(TEXT, body), range(12)))
        statuses = [status for status, _, _ in found]
        assert set(statuses) == {200, 429} and statuses.count(200) >= 3
        for status, headers, answer in found:
            if status == 429:
                assert 1 <= int(headers["retry-after"]) <= 60
                assert answer["error"]["type"] == "rate_limit_error"
        server.wait_idle()
        text = server.get("/metrics")[2].decode()
        n = statuses.count(429)
        # Texts of one request wait one by one.
        status, headers, _ = server.post("/v1/embeddings", {"input": ["a"] * 20})
        assert status == 429 and headers["retry-after"]
        server.wait_idle()
        assert f'gguflow:requests_rejected_total{{model_name="tales-8m"}} {float(n)}' in text
    finally:
        server.stop()


def test_keys_take_turns() -> None:
    """One key's many requests do not hold up another's single one."""
    options = Options(n_ctx=512, n_seqs=1, n_cache=512)
    server = Running(options=options, keys=frozenset(("many", "one")))
    ended: list[str] = []

    def ask_as(key: str) -> None:
        body = {"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": True}
        assert server.post(TEXT, body, {"authorization": f"Bearer {key}"})[0] == 200
        ended.append(key)

    try:
        with ThreadPoolExecutor(40) as pool:
            for _ in range(20):
                pool.submit(ask_as, "many")
            while server.loaded.gate.n_waiting < 14:
                time.sleep(0.001)
            pool.submit(ask_as, "one").result()
            place = ended.index("one")
        assert len(ended) == 21 and place < 14, ended
    finally:
        server.stop()


def test_a_reader_that_is_slow_is_bounded(server: Running) -> None:
    """A reader that takes nothing holds no more than its context; others go on meanwhile."""
    body = {"prompt": "Once", "max_tokens": 480, "ignore_eos": True, "stream": True, "logprobs": 20}
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(20)
        s.connect(("127.0.0.1", server.port))
        s.sendall(sent(body, "connection: close"))
        for i in range(4):
            assert server.post(TEXT, ask(i))[0] == 200
        found = b""
        while data := s.recv(65536):
            found += data
    assert b"[DONE]" in found and found.count(b'"text":') >= 100
    server.wait_idle()


def test_a_prefix_comes_out_of_the_cache(server: Running) -> None:
    stats = server.loaded.engine.engine.stats
    prompt = "The fox and the wolf went " * 40
    server.post(TEXT, {"prompt": prompt + "home", "max_tokens": 1})
    found = server.loaded.engine.engine.stats.n_found
    server.post(TEXT, {"prompt": prompt + "away", "max_tokens": 1})
    assert server.loaded.engine.engine.stats.n_found - found >= 128
    assert server.loaded.engine.engine.stats.n_steps > stats.n_steps


@pytest.mark.slow
def test_a_prefix_found_in_the_cache_saves_its_time() -> None:
    """A prompt of 2,000 tokens again: the first token comes at least eight times sooner."""
    model = random_model("smollm2-135m:Q4_0")
    server = Running(options=Options(n_ctx=2176, n_seqs=1, n_threads=2), model=model)
    try:
        ids = [int(i) for i in np.random.default_rng(0).integers(3, 4000, 2048)]
        took = []
        for last in (5, 6):
            began = time.perf_counter()
            assert server.post(TEXT, {"prompt": [*ids, last], "max_tokens": 1})[0] == 200
            took.append(time.perf_counter() - began)
        assert took[0] > 8 * took[1], took
    finally:
        server.stop()


@pytest.mark.slow
def test_many_clients_for_minutes() -> None:
    """256 clients at once: no error, no growth after the first quarter, everyone's own text."""
    server = Running(n_queue=512, timeout=300.0)
    try:
        alone = [texts(server.post(TEXT, ask(i))[2]) for i in range(64)]
        end, errors = time.monotonic() + 120, list[str]()
        sizes = list[int]()

        def client(k: int) -> None:
            i = k
            while time.monotonic() < end:
                i = (i * 7 + 1) % 64
                status, _, answer = server.post(TEXT, ask(i))
                if status != 429 and (status != 200 or texts(answer) != alone[i]):
                    errors.append(f"{i}: {status} {str(answer)[:200]}")

        threads = [threading.Thread(target=client, args=(k,)) for k in range(256)]
        for t in threads:
            t.start()
        while time.monotonic() < end:
            time.sleep(5)
            with open("/proc/self/statm") as f:
                sizes.append(int(f.read().split()[1]) * 4096)
        for t in threads:
            t.join()
        assert not errors, errors[:5]
        quarter = max(sizes[: len(sizes) // 4 + 1])
        assert max(sizes) < quarter + (24 << 20), sizes
        server.wait_idle(30)
    finally:
        server.stop()
