"""What `gguflow serve --ray` gives the server: a cluster that a model's replicas run on."""

from __future__ import annotations

from typing import Any

from gguflow.engine.cluster.work import Work
from gguflow.engine.dataclass import replace
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.server.config import ModelSpec

from .engine import ClusterEngine
from .fleet import Fleet, FleetConfig
from .watch import ClusterWatch


def here(options: Options) -> Options:
    """How the model is opened in the process that answers HTTP, which computes nothing and need not
    have the devices that its replicas have."""
    return replace(
        options, n_gpu_layers=0, device=0, devices=(), split_mode="layer", tensor_split=(),
        overrides=(), cpu_experts=0, expert_use="", sparse="off", predictor="", vram_budget=0,
        split="", sparse_threshold=None, weight_cache=False,
    )  # fmt: skip


class RayCluster:
    """Replicas of one model on a cluster that was joined (`engine.cluster.connect`)."""

    def __init__(self, ray: Any, config: FleetConfig) -> None:
        self._ray, self._config = ray, config
        self.n_replicas = config.n_replicas

    def engine(
        self, spec: ModelSpec, model: Model, most: int
    ) -> tuple[ClusterEngine, ClusterWatch]:
        """See `manager.Cluster`. Reads the whole file, for its hash."""
        c = self._config
        work = Work.of(
            spec.path, spec.options, n_stages=c.n_stages, shares=c.shares, patience=c.silence
        )  # fmt: skip
        fleet = Fleet(self._ray, work, c)
        n_pages = max(model.cache_size().n_pages.values())
        engine = ClusterEngine(fleet, spec.options.n_seqs, n_pages, most)
        return engine, engine.watched
