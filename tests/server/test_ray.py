"""Replicas on a Ray cluster: the same bytes as one process, whatever dies."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import pytest
from ray_nodes import serving, three_nodes
from serving import Running
from texts import FORMS, SHORT, ask, check_kills, kill

from gguflow.engine.cluster.errors import ClusterError
from gguflow.engine.cluster.nodes import Places

# Not imported here: what Ray is told for one machine has to be said before.
if find_spec("ray") is None:
    pytest.skip("ray is missing: pip install 'gguflow[ray]'", allow_module_level=True)


@pytest.mark.slow  # test_ray_line.py has one node
def test_replicas_and_stages_on_three_nodes() -> None:
    """One test, for the nodes take half of its time to come up."""
    with serving() as alone:
        forms = [ask(alone, body) for body in FORMS]
        short = [ask(alone, body) for body in SHORT]
        vector = alone.post("/v1/embeddings", {"input": "A tale"})[2]["data"]
    assert all(status == 200 for status, _ in [*forms, *short])
    with three_nodes() as ray:
        with serving(ray) as server:
            links = server.loaded.engine._fleet.links
            assert len({link.started.node for link in links}) >= 1
            with ThreadPoolExecutor(8) as pool:
                assert [*pool.map(lambda b: ask(server, b), FORMS)] == forms
            assert server.post("/v1/embeddings", {"input": "A tale"})[2]["data"] == vector
            check_kills(server, short)
            status, _, metrics = server.get("/metrics")
            assert status == 200 and b"vllm:generation_tokens_total" in metrics
            server.wait_idle()
        with serving(ray, n_replicas=1, n_stages=2) as server:
            with ThreadPoolExecutor(8) as pool:
                assert [*pool.map(lambda b: ask(server, b), FORMS)] == forms
            assert server.post("/v1/embeddings", {"input": "A tale"})[2]["data"] == vector
            check_a_lost_stage(server, short)
            server.wait_idle()
        check_too_small(ray)


def check_too_small(ray: Any) -> None:
    with pytest.raises(ClusterError, match="3 nodes have room for 6"):
        Places(ray, 7, {"CPU": 1.0}, 1.0)


def check_a_lost_stage(server: Running, expected: list[tuple[int, Any]]) -> None:
    """Requests wait for the stage to come back, and are replayed."""
    fleet = server.loaded.engine._fleet
    last = next(pid for what, pid in fleet.processes() if what.startswith("stage 1"))
    lock, n_done = threading.Lock(), [0]

    def one(i: int) -> tuple[int, Any]:
        with lock:
            n_done[0] += 1
            if n_done[0] == 10:
                kill(last)
        return ask(server, SHORT[i % len(SHORT)])

    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(one, range(30))]
    for i, answer in enumerate(found):
        assert answer == expected[i % len(SHORT)]
    assert server.loaded.engine.n_retried >= 1


@pytest.mark.slow
def test_processes_that_die_again_and_again() -> None:
    """Two pairs of stages, of which a process dies every now and then."""
    with serving() as alone:
        short = [ask(alone, body) for body in SHORT]
    with three_nodes() as ray, serving(ray, n_replicas=2, n_stages=2) as server:
        for _ in range(2):
            check_kills(server, short, (30, 60, 90, 120, 150))
        check_a_lost_stage(server, short)
