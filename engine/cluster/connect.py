"""A Ray cluster: joined where one runs, or started on this machine alone.

Ray's statistics of use and its dashboard are off, and what is started here listens on 127.0.0.1
unless it is told otherwise. Ray trusts whoever reaches its ports: they are for networks that one
trusts.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gguflow.engine.mapped import hold

from .errors import ClusterError

LOCAL, AUTO = "local", "auto"
REACH = 5.0  # seconds for the first connection to a cluster
# Of shared memory where a cluster is started here: values up to 100 KiB do without, and the largest
# that crosses is a piece of a prompt.
STORE = 256 << 20
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def use_ray(address: str = "") -> Any:
    """The module, without its statistics. address: of the cluster that will be joined. Raises
    ClusterError where Ray is not installed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address == LOCAL:
        # What is started here has the loopback address and listens nowhere else. Ray would find
        # another address for 127.0.0.1; this is its switch for systems where it stays by itself.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as e:
        raise ClusterError(f"{e.name} is missing: pip install 'gguflow[ray]'") from None
    return ray


def connect(
    address: str = LOCAL, n_cpus: int | None = None, own_gpu: tuple[int, int] | None = None
) -> Any:
    """Join a cluster, unless this process is in one: that at HOST:PORT, `auto` for the one this
    machine is a node of, `local` for a new one here with n_cpus places. own_gpu: which this process
    computes with, and of how many: what is started here leaves that one to it. Returns Ray's
    module; `disconnect` leaves it.

    Raises ClusterError, one line.
    """
    ray = use_ray(address)
    if ray.is_initialized():
        return ray
    given: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        given |= {  # by its address, for without one Ray joins what runs on this machine already
            "address": "local", "include_dashboard": False, "num_cpus": n_cpus,
            "object_store_memory": STORE,
        }  # fmt: skip
    else:
        if address != AUTO:
            _reach(address)
        given["address"] = address
    try:
        with _leaving(own_gpu if address == LOCAL else None):
            ray.init(**given)
        hold()  # Ray takes the signals of broken programs
    except Exception as e:  # of a dozen kinds, some of them bare RuntimeErrors
        with suppress(Exception):
            ray.shutdown()
        why = " ".join(str(e).split())[:300]
        raise ClusterError(f"no cluster to work with at {address}: {why}") from None
    return ray


@contextmanager
def _leaving(own_gpu: tuple[int, int] | None) -> Iterator[None]:
    """What is started meanwhile sees the other GPUs alone."""
    if own_gpu is None:
        yield
        return
    before = os.environ.get(_VISIBLE)
    own, n = own_gpu
    seen = [str(i) for i in range(n)] if before is None else before.split(",")
    os.environ[_VISIBLE] = ",".join(seen[:own] + seen[own + 1 :])
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VISIBLE]
        else:
            os.environ[_VISIBLE] = before


def disconnect() -> None:
    """Leave the cluster; one that `connect` started ends."""
    use_ray().shutdown()


def _reach(address: str) -> None:
    """Raises ClusterError where nothing listens: Ray itself tries for a minute."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ClusterError(f"cluster {address}: expected HOST:PORT, auto or local")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except OSError as e:
        raise ClusterError(f"no cluster at {address}: {e.strerror or e}") from None


def node_id(ray: Any) -> str:
    """Ray's own name of the node this process is on."""
    return str(ray.get_runtime_context().get_node_id())


def node_name(ray: Any) -> str:
    """The address of the node this process is on."""
    return str(ray.util.get_node_ip_address())
