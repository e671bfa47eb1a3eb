"""Places on a cluster: one bundle a process, on different nodes as far as there are enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import ClusterError

Needs = Mapping[str, float]  # resources of one process, by Ray's names


class Places:
    """n places, each with the resources that one process needs.

    Ray finds another node for the places of one that is lost; until then actors made there wait.
    """

    def __init__(self, ray: Any, n: int, needs: Needs, wait: float) -> None:
        """wait: seconds for the cluster to have them. Raises ClusterError with the figures."""
        self._ray, self._n, self._needs = ray, n, dict(needs)
        self._check()
        self._group = ray.util.placement_group([self._needs] * n, strategy="SPREAD")
        if not self._group.wait(wait):
            free = _shown(ray.available_resources(), self._needs)
            self.close()
            raise ClusterError(
                f"the cluster had no room for {n} x {_shown(self._needs, self._needs)} within "
                f"{wait:g} s; free are {free}"
            )

    def _check(self) -> None:
        """Raises ClusterError for what the cluster could not hold if it were empty."""
        nodes = [n["Resources"] for n in self._ray.nodes() if n["Alive"]]
        found = sum(
            min((int(n.get(k, 0) // v) for k, v in self._needs.items() if v), default=self._n)
            for n in nodes
        )
        if found < self._n:
            raise ClusterError(
                f"{self._n} processes with {_shown(self._needs, self._needs)} each are asked for; "
                f"the cluster's {len(nodes)} nodes have room for {found}"
            )

    def actor(self, cls: type, at: int, *args: Any, **options: Any) -> Any:
        """A process with an object of this class, on place `at`; it ends with this one."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        named = {"CPU": "num_cpus", "GPU": "num_gpus"}
        needs = {named[k]: v for k, v in self._needs.items() if k in named}
        where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=at)
        made = self._ray.remote(cls).options(
            scheduling_strategy=where, max_restarts=0, max_task_retries=0, **needs, **options
        )
        return made.remote(*args)

    def close(self) -> None:
        """Give the places back; whatever runs there ends. They are gone with their cluster, after
        whose end Ray would join another one to do so."""
        if self._ray.is_initialized():
            self._ray.util.remove_placement_group(self._group)


def _shown(resources: Mapping[str, float], names: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(k, 0):g} {k}" for k in names) or "nothing"
