"""Engines apart from the process that answers HTTP: on a cluster, or in a process beside it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gguflow.engine.cluster.sameness import program
from gguflow.engine.cluster.work import Started, Work
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.server.config import SWITCH, ModelSpec
from gguflow.server.garbage import put_aside

from .actor import Hosts
from .engine import ClusterEngine
from .fleet import Fleet, FleetConfig
from .process import ProcessHosts
from .replica import Replica
from .watch import ClusterWatch

SILENCE = 120.0  # seconds; kernels may be compiled in the first run of a plan


def here(options: Options) -> Options:
    """How the model is opened in the process that answers HTTP, which computes nothing and need not
    have the devices that its replicas have."""
    return replace(
        options, n_gpu_layers=0, device=0, devices=(), split_mode="layer", tensor_split=(),
        overrides=(), cpu_experts=0, expert_use="", sparse="off", predictor="", vram_budget=0,
        split="", sparse_threshold=None, weight_cache=False,
    )  # fmt: skip


class RayCluster:
    """Replicas of one model on a cluster that was joined (`engine.cluster.connect`). needs:
    resources of one process, by Ray's names. n_stages: processes of a replica, with layers in the
    proportions of `shares`."""

    def __init__(
        self, ray: Any, config: FleetConfig, needs: Mapping[str, float], n_stages: int = 1,
        shares: tuple[float, ...] = (),
    ) -> None:  # fmt: skip
        self._ray, self._config, self._needs = ray, config, needs
        self._n_stages, self._shares = n_stages, shares
        self.n_replicas = config.n_replicas

    def engine(
        self, spec: ModelSpec, model: Model, most: int
    ) -> tuple[ClusterEngine, ClusterWatch]:
        """See `manager.Cluster`. Reads the whole file, for its hash."""
        from .ray_hosts import RayHosts

        c = self._config
        work = Work.of(
            spec.path, spec.options, n_stages=self._n_stages, shares=self._shares,
            patience=c.silence,
        )  # fmt: skip
        hosts = RayHosts(self._ray, work, c.n_replicas, self._needs, c.wait)
        return _engine(hosts, c, spec, model, most)


@dataclass(frozen=True)
class _Loading:
    """`Loading` in a process beside the server."""

    open: Callable[[], Model]
    finish: Callable[[Model], None]

    def load(self) -> tuple[Model, Started]:
        model = self.open()
        model.load_weights()
        self.finish(model)
        put_aside()
        held = (b for b in model.backends.values() if b.holds)
        return model, Started(platform.node(), os.getpid(), program(held))


class OwnProcess:
    """Each model's engine in a process of its own on this machine. open, finish: as of
    `ModelManager`, called there: they have to be importable, with what is bound to them."""

    n_replicas = 1

    def __init__(self, open: Callable[[ModelSpec], Model], finish: Callable[[Model], None]) -> None:
        self._open, self._finish = open, finish

    def engine(
        self, spec: ModelSpec, model: Model, most: int
    ) -> tuple[ClusterEngine, ClusterWatch]:
        """See `manager.Cluster`."""
        loading = _Loading(partial(self._open, spec), self._finish)
        hosts = ProcessHosts(partial(Replica, loading), SWITCH)
        return _engine(hosts, FleetConfig(1, silence=SILENCE), spec, model, most)


def _engine(
    hosts: Hosts, config: FleetConfig, spec: ModelSpec, model: Model, most: int
) -> tuple[ClusterEngine, ClusterWatch]:
    n_pages = max(model.cache_size().n_pages.values())
    engine = ClusterEngine(Fleet(hosts, config), spec.options.n_seqs, n_pages, most)
    return engine, engine.watched
