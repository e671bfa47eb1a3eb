"""A server in a thread of the test, on a real socket, over the bundled model."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import gguflow
from gguflow.cli.load import bundled_model
from gguflow.engine.load import ModelSource, open_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.server.config import ModelSpec, ServerConfig
from gguflow.server.manager import ModelManager
from gguflow.server.run import listen, make_server
from gguflow.server.service import Service

OPTIONS = Options(n_ctx=512, n_seqs=8, n_cache=4096, n_threads=2)
CONFIG = ServerConfig(port=0, access_log=False, timeout=60.0, drain=5.0)


def open_spec(spec: ModelSpec) -> Model:
    return Model(open_model(spec.path), spec.options)


def with_tokenizer(source: ModelSource, options: Options) -> Model:
    """A model of random weights with the bundled model's tokenizer."""
    model = Model(source, options)
    tokenizer = gguflow.Tokenizer.load(bundled_model())
    tokenizer.n_rows = model.hp.n_vocab
    model.__dict__["tokenizer"] = tokenizer
    return model


class Running:
    """A server that runs until `stop`. model: served in place of the file of the first spec."""

    def __init__(
        self,
        specs: Sequence[ModelSpec] | None = None,
        options: Options = OPTIONS,
        model: ModelSource | None = None,
        cluster: Any = None,
        **changes: Any,
    ) -> None:
        specs = specs or [ModelSpec("tales-8m", Path(bundled_model()), options)]
        self.config = replace(CONFIG, **changes)
        opened = open_spec if model is None else lambda spec: with_tokenizer(model, spec.options)
        manager = ModelManager(specs, self.config, opened, cluster=cluster)
        self.service = Service(manager, self.config)
        self._sock: socket.socket = listen(self.config)
        self.port: int = self._sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        ready = threading.Event()
        self.server = make_server(self.service, ready.set)
        self._thread = threading.Thread(target=self.server.run, args=([self._sock],), daemon=True)
        self._thread.start()
        assert ready.wait(120)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(30)
        self._sock.close()
        assert not self._thread.is_alive()

    @property
    def loaded(self) -> Any:
        return next(iter(self.service.manager.loaded()))

    def post(
        self, path: str, body: Any, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of an answer. body: bytes as they are, else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request(
            "POST", path, data, {"content-type": "application/json"} | (headers or {})
        )

    def get(
        self, path: str, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        return self.request("GET", path, None, headers or {})

    def request(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        found = {k.lower(): v for k, v in response.getheaders()}
        if found.get("content-type", "").startswith("application/json"):
            return response.status, found, json.loads(text)
        return response.status, found, text

    def wait_idle(self, seconds: float = 10.0) -> None:
        """Until nothing is in work: no sequences, no pages, nobody at the gate."""
        end = time.monotonic() + seconds
        while True:
            stats, gate = self.loaded.watched.stats, self.loaded.gate
            busy = (
                self.loaded.watched.has_work, stats.n_running, stats.n_waiting,
                gate.n_inside, gate.n_waiting, len(self.service.requests.live),
                stats.n_pages != stats.n_available,
            )  # fmt: skip
            if not any(busy):
                return
            assert time.monotonic() < end, f"still in work: {busy} {stats}"
            time.sleep(0.01)


def free_text(answer: Any) -> str:
    """The text of a completion's first choice."""
    text: str = answer["choices"][0]["text"]
    return text
