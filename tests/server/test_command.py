"""`gguflow serve` as a process: arguments, how it comes up and goes down; the load generator."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from serving import Running

from gguflow.cli.bench_http import Endpoint, Outcome
from gguflow.cli.bench_serve import percentile, summary
from gguflow.cli.bench_soak import soak
from gguflow.cli.main import main

ENV = {k: v for k, v in os.environ.items() if not k.startswith("GGUFLOW_")}


class Process:
    """The command, started; its lines on stderr."""

    def __init__(self, *args: str, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gguflow", "serve", "--port", "0", *args],
            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENV | env,
        )  # fmt: skip
        self.lines: list[str] = []
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("ready"):
                self._ready.set()
        self._ready.set()

    def connect(self) -> HTTPConnection:
        assert self._ready.wait(60) and self.process.poll() is None, self.lines
        port = re.search(r":(\d+)/$", next(x for x in self.lines if x.startswith("ready")))
        assert port
        return HTTPConnection("127.0.0.1", int(port[1]), timeout=30)


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    found: list[Process] = []
    yield found
    for p in found:
        p.process.kill()
        p.process.wait(10)


def post(connection: HTTPConnection, body: Any, **headers: str) -> Any:
    fields = {"content-type": "application/json", **headers}
    connection.request("POST", "/v1/completions", json.dumps(body), fields)
    return connection.getresponse()


def test_it_serves_logs_and_drains(processes: list[Process], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\n\nsecret\n")
    p = Process("-c", "512", "--parallel", "2", "--api-key", str(keys), GGUFLOW_API_KEY="other")
    processes.append(p)
    connection = p.connect()
    body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
    assert post(connection, body).status == 401
    for key in ("secret", "other"):
        connection = p.connect()
        connection.request("GET", "/v1/models", headers={"authorization": f"Bearer {key}"})
        assert connection.getresponse().status == 200
    response = post(p.connect(), body, authorization="Bearer secret")
    first = response.readline()
    p.process.send_signal(signal.SIGTERM)
    text = first + response.read()
    assert b"[DONE]" in text and text.count(b'"text":"') > 100  # what was in work is answered
    assert p.process.wait(30) == 0
    logged = [json.loads(x) for x in p.lines if x.startswith("{")]
    assert {x["status"] for x in logged} == {200, 401}
    done = next(x for x in logged if x.get("completion_tokens"))
    assert done["completion_tokens"] == 400 and done["key"] == "key1" and done["finish"] == "length"
    assert "secret" not in "".join(p.lines)


def test_a_second_signal_ends_what_is_in_work(processes: list[Process]) -> None:
    """A request that is not over for minutes holds up the first SIGTERM and not the next."""
    p = Process("-c", "512", "--no-access-log", "--drain", "300", "--body-timeout", "300")
    processes.append(p)
    waiting = p.connect()
    waiting.putrequest("POST", "/v1/completions")
    waiting.putheader("content-type", "application/json")
    waiting.putheader("content-length", "100")
    waiting.endheaders(b"{")
    assert post(p.connect(), {"prompt": "Once", "max_tokens": 1}).status == 200
    p.process.send_signal(signal.SIGTERM)
    for _ in range(300):  # until nobody is let in any more
        try:
            socket.create_connection((waiting.host, waiting.port), 5).close()
        except OSError:
            break
        time.sleep(0.1)
    assert p.process.poll() is None
    p.process.send_signal(signal.SIGTERM)
    assert p.process.wait(60) == 0, p.lines


def test_guesses_change_no_text(processes: list[Process]) -> None:
    body = {"prompt": "the king and the queen and the king and", "max_tokens": 40, "temperature": 0}
    texts = []
    for flags in ((), ("--lookup",)):
        p = Process("-c", "256", "--parallel", "2", "--no-access-log", *flags)
        processes.append(p)
        texts.append(json.loads(post(p.connect(), body).read())["choices"])
        connection = p.connect()
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        drafted = re.search(r"^vllm:spec_decode_num_draft_tokens_total\S* (\S+)", text, re.M)
        assert drafted and (float(drafted[1]) > 0) == bool(flags)
    assert texts[0] == texts[1]


def test_ctrl_c_ends_it_too(processes: list[Process]) -> None:
    p = Process("--no-access-log", "--no-webui")
    processes.append(p)
    connection = p.connect()
    connection.request("GET", "/")
    assert connection.getresponse().status == 404
    connection.close()
    p.process.send_signal(signal.SIGINT)
    assert p.process.wait(30) == 0
    assert not [x for x in p.lines if x.startswith("{")]


@pytest.mark.parametrize(("args", "said"), [
    (["-m", "/nowhere.gguf"], "nowhere.gguf"),
    (["--alias", "a", "--alias", "b"], "2 names for 1 models"),
    (["--api-key", "/nowhere"], "--api-key /nowhere"),
    (["--timeout", "0"], "--timeout"),
    (["--parallel", "0"], "--parallel"),
    (["--port", "70000"], "--port"),
    (["--chat-template", "nope"], "nope"),
    (["--draft-max", "3"], "--draft-max"),
    (["-m", "a.gguf", "-m", "b.gguf", "-md", "c.gguf"], "-md"),
    (["-m", "a.gguf", "-m", "b.gguf", "--lora", "c.gguf"], "--lora: for one model"),
    (["--lora-alias", "x"], "--lora-alias: there is no --lora"),
    (["-m", "a.gguf", "--lora", "x.gguf", "--lora-alias", "a"], "two models are called 'a'"),
    (["--lora", "/nowhere.gguf"], "/nowhere.gguf"),
    (["--chat-template-kwargs", "[1]"], "--chat-template-kwargs"),
    (["--chat-template-kwargs", '{"tools": 1}'], "tools is what requests say"),
    (["--reasoning-format", "raw"], "--reasoning-format"),
    (["--reasoning-budget", "-2"], "--reasoning-budget"),
])  # fmt: skip
def test_arguments(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *args]) in (2, 3, 4)
    lines = capsys.readouterr().err.splitlines()
    assert said in lines[-1] and lines[-1].startswith("gguflow: error: "), lines


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        assert main(["serve", "--port", str(s.getsockname()[1])]) == 4
    assert "in use" in capsys.readouterr().err


def test_load_on_a_server(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["bench", "--serve", server.url, "-npp", "20", "-ntg", "5", "-o", "jsonl"]
    assert main([*args, "--clients", "1,3", "--n-requests", "6"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [r["clients"] for r in rows] == [1, 3]
    for r in rows:
        assert r["requests"] == 6 and not r["errors"]
        assert r["tokens_per_s"] == pytest.approx(30 / r["seconds"])
        assert 0 < r["first_p50"] <= r["first_p95"] <= r["whole_p99"]
    assert main([*args, "--rate", "50", "--n-requests", "5", "--spread", "uniform",
                 "--shared-prefix", "10", "-o", "md"]) == 0  # fmt: skip
    assert "| 50/s |" in capsys.readouterr().out
    for bad in (
        ["--serve", "ftp://x"],
        ["--serve", "http://127.0.0.1:1"],
        [*args[1:], "-o", "sql"],
    ):
        assert main(["bench", *bad]) == 2


def test_a_soak(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["bench", "--serve", server.url, "--soak", "1", "--clients", "6", "-npp", "12"]
    code = main([*args, "-ntg", "3"])
    rows = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in rows[-1].strip("|").split("|")]
    assert code == 0 and cells[0] == "6" and int(cells[2]) > 6 and cells[5:7] == ["0", "0"], rows
    assert cells[11] == "0 0" and all(int(n) > 1 for n in cells[9].split()), rows
    assert main([*args, "--rate", "3"]) == 2 and "--soak" in capsys.readouterr().err


def test_a_soak_sees_texts_that_differ_and_memory_that_grows() -> None:
    class Unsteady:
        n = 0

        async def complete(self, body: Any) -> Outcome:
            self.n += 1
            await asyncio.sleep(0.001)
            return Outcome(200, [0.1], 0.1, 1, 2, texts={0: "a" if self.n % 5 else "b"})

        async def get(self, path: str) -> Any:
            return {"rss": self.n << 20}

    unsteady: Any = Unsteady()
    found = asyncio.run(soak(unsteady, [{}] * 2, 2, 0.7))
    assert 0 < found.n_other < found.n_requests and not found.errors
    assert found.n_tokens == 2 * found.n_requests
    found.memory = [(1.0, 100), (59.0, 200), (61.0, 150), (300.0, 260)]
    assert found.grown(600) == 60 and found.grown(100) == 160
    found.before, found.after = {"threads": 3, "pages": 0}, {"threads": 3, "pages": 1}
    assert found.kept == ["pages"]


def test_figures() -> None:
    good = Outcome(200, [0.1, 0.2, 0.4], 0.5, 7, 3)
    bad = Outcome(429)
    row = summary([good, good, bad], 2.0)
    assert row["requests"] == 2 and row["errors"] == {"429": 1}
    assert row["tokens_per_s"] == 3.0 and row["prompt_per_s"] == 7.0
    assert row["between_p50"] == pytest.approx(0.1) and row["between_p99"] == pytest.approx(0.2)
    assert percentile(range(1, 101), 95) == 95 and percentile([], 50) == 0
    assert Endpoint("https://a.example/v1/").port == 443
    with pytest.raises(ValueError):
        Endpoint("file:///etc")


def test_ready_in_the_time_the_model_takes(processes: list[Process]) -> None:
    began = time.monotonic()
    p = Process()
    processes.append(p)
    p.connect()
    assert time.monotonic() - began < 30
