"""An engine in a process beside the server: the same bytes, whatever becomes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from serving import Running, open_spec
from texts import FORMS, SHORT, ask, check_kills

from gguflow.cli.load import bundled_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.server.cluster.process import END_S
from gguflow.server.cluster.serve import OwnProcess
from gguflow.server.config import ModelSpec

OPTIONS = Options(n_ctx=256, n_seqs=8, n_cache=2048, n_threads=1)


def leave(model: Model) -> None:
    """Nothing is to be done once a model is loaded."""


def no_memory(spec: ModelSpec) -> Model:
    raise MemoryError("cuda:0: 9 GiB are needed, 8 GiB are free")


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def serving(own: bool = True) -> Iterator[Running]:
    spec = ModelSpec("tales-8m", Path(bundled_model()), OPTIONS)
    running = Running([spec], OPTIONS, cluster=OwnProcess(open_spec, leave) if own else None)
    try:
        yield running
    finally:
        running.stop()


def test_texts_are_those_of_an_engine_in_the_server() -> None:
    with serving(own=False) as inside:
        forms = [ask(inside, body) for body in FORMS]
        short = [ask(inside, body) for body in SHORT]
        vector = inside.post("/v1/embeddings", {"input": "A tale"})[2]["data"]
        memory = inside.get("/live/memory")[2]
    assert all(status == 200 for status, _ in [*forms, *short])
    with serving() as server:
        (link,) = server.loaded.engine._fleet.links
        pid = link.started.pid
        assert pid != os.getpid()
        with ThreadPoolExecutor(8) as pool:
            assert [*pool.map(lambda body: ask(server, body), FORMS)] == forms
        assert server.post("/v1/embeddings", {"input": "A tale"})[2]["data"] == vector
        assert server.get("/live/memory")[2]["forecast"] == memory["forecast"]
        assert server.get("/live/ops")[0] in (200, 404)  # 404: nothing runs
        check_kills(server, short, (30,), n_replicas=1, n_requests=50)
        (link,) = server.loaded.engine._fleet.links
        assert link.started.pid != pid
        server.wait_idle()
        pid, began = link.started.pid, time.monotonic()
    assert time.monotonic() - began < END_S, "it had to be killed"
    assert not runs(pid)  # it ended before the server did


def test_what_keeps_a_model_from_being_loaded_is_told_as_it_is() -> None:
    spec = ModelSpec("tales-8m", Path(bundled_model()), OPTIONS)
    from gguflow.server.config import ServerConfig
    from gguflow.server.manager import ModelManager
    from gguflow.server.run import listen, serve
    from gguflow.server.service import Service

    config = ServerConfig(port=0, access_log=False)
    manager = ModelManager([spec], config, open_spec, cluster=OwnProcess(no_memory, leave))
    sock = listen(config)
    try:
        with pytest.raises(MemoryError, match="9 GiB are needed"):
            serve(Service(manager, config), sock, lambda: None)
    finally:
        sock.close()
