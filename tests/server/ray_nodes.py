"""A Ray cluster of three node processes on this machine, and servers over it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from serving import Running

from gguflow.cli.load import bundled_model
from gguflow.engine.cluster.connect import LOCAL, connect, disconnect, use_ray
from gguflow.engine.options import Options
from gguflow.server.cluster.fleet import FleetConfig
from gguflow.server.cluster.serve import RayCluster
from gguflow.server.config import ModelSpec

OPTIONS = Options(n_ctx=256, n_seqs=8, n_cache=2048, n_threads=1)
STORE = 80 << 20  # bytes of shared memory, the least that Ray takes


@contextmanager
def three_nodes() -> Iterator[Any]:
    """Ray's module, joined to a cluster of three nodes with two places each. Loopback alone; its
    dashboard, its statistics, its autoscaler and its collector of logs are off."""
    use_ray(LOCAL)
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    try:
        node = {"num_cpus": 2, "object_store_memory": STORE, "include_log_monitor": False}
        try:
            nodes.add_node(**node, include_dashboard=False, no_monitor=True)
            for _ in range(2):
                nodes.add_node(**node, wait=False)
            ray = connect(nodes.address)
            nodes.wait_for_nodes(timeout=120)
        except Exception as e:  # Ray gives a node 30 seconds, which nothing here can change
            pytest.skip(f"Ray's nodes do not come up on this machine as it is now: {e}")
        yield ray
    finally:
        disconnect()
        nodes.shutdown()


@contextmanager
def serving(
    ray: Any = None, options: Options = OPTIONS, n_replicas: int = 2, n_stages: int = 1
) -> Iterator[Running]:  # fmt: skip
    """A server over replicas, or over an engine of its own without `ray`."""
    spec = ModelSpec("tales-8m", Path(bundled_model()), options)
    cluster = None
    if ray is not None:
        fleet = FleetConfig(n_replicas, wait=60.0, silence=60.0)
        cluster = RayCluster(ray, fleet, {"CPU": 1.0}, n_stages)
    running = Running([spec], options, cluster=cluster)
    try:
        yield running
    finally:
        running.stop()
