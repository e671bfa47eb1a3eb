"""Requests whose texts are held against each other, however they are served; processes that die."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from serving import Running

PREFIX = "Once upon a time there was a king who had three daughters. " * 6
FORMS: list[dict[str, Any]] = [
    {"prompt": "The old woman", "max_tokens": 24, "seed": 3},
    {"prompt": PREFIX + "The eldest", "max_tokens": 16, "temperature": 0},
    {"prompt": "A wolf", "max_tokens": 12, "seed": 4, "logprobs": 2},
    {"prompt": "The fox", "max_tokens": 30, "seed": 5, "stop": ["the", "."]},
    {"prompt": "Say: ", "max_tokens": 12, "seed": 6, "grammar": 'root ::= "a" [0-9]+ "z"'},
    {"prompt": "He said", "max_tokens": 9, "seed": 7, "min_tokens": 8, "n": 3},
    {"prompt": "They went", "max_tokens": 9, "seed": 8, "logit_bias": {"300": 5}, "mirostat": 2},
]
SHORT = [
    {"prompt": f"{who} went to {where} and", "max_tokens": 6 + i, "seed": i}
    for i, who in enumerate(("The king", "A fox", "An old man", "The bear", "Her son"))
    for where in ("the wood", "the town")
]


def ask(server: Running, body: dict[str, Any]) -> tuple[int, Any]:
    """What an answer says, without its id and time."""
    status, _, answer = server.post("/v1/completions", body)
    if status != 200:
        return status, answer
    usage = {k: v for k, v in answer["usage"].items() if k.endswith("tokens")}
    return status, (answer["choices"], usage)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def check_kills(
    server: Running, expected: list[tuple[int, Any]], at: tuple[int, ...] = (80,),
    n_replicas: int = 2, n_requests: int = 200,
) -> None:  # fmt: skip
    """Requests; with some of them a process is killed: each has its text, or a clear error."""
    fleet = server.loaded.engine._fleet
    n_done, killed = [0], list[int]()
    lock = threading.Lock()

    def one(i: int) -> tuple[int, Any]:
        with lock:
            n_done[0] += 1
            if n_done[0] in at:
                link = max(fleet.links, key=lambda link: link.n_active)
                killed.append(link.started.pid)
                kill(killed[-1])
        return ask(server, SHORT[i % len(SHORT)])

    with ThreadPoolExecutor(12) as pool:
        found = [*pool.map(one, range(n_requests))]
    for i, (status, answer) in enumerate(found):
        if status == 200:
            assert (status, answer) == expected[i % len(SHORT)]
        else:
            assert status == 503 and "replica" in answer["error"]["message"], answer
    assert len(killed) == len(at)
    assert sum(status == 200 for status, _ in found) >= n_requests - 10
    assert server.loaded.engine.n_retried >= 1
    end = time.monotonic() + 60
    while len(fleet.links) < n_replicas:  # those that were killed come back
        assert time.monotonic() < end, fleet.last
        time.sleep(0.05)
