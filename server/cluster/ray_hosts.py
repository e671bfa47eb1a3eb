"""Replicas as Ray actors, on the nodes of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gguflow.engine.cluster.actors import calls_to, make_stages
from gguflow.engine.cluster.connect import use_ray
from gguflow.engine.cluster.holder import stage_model
from gguflow.engine.cluster.nodes import Places
from gguflow.engine.cluster.work import Started, Work, named_errors
from gguflow.engine.model import Model

from .actor import Actor, ActorLostError
from .replica import Replica


class RayActor:
    """`Actor` of an actor's handle."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def call(self, name: str, *args: Any) -> Any:
        from ray.exceptions import RayError, RayTaskError

        try:
            return await getattr(self._handle, name).remote(*args)
        except RayTaskError as e:
            raise e.cause if isinstance(e.cause, Exception) else ActorLostError(_line(e)) from None
        except RayError as e:
            raise ActorLostError(_line(e)) from None

    def tell(self, name: str, *args: Any) -> None:
        getattr(self._handle, name).remote(*args)


class _Loading:
    """How a replica comes to its model on a node; stages: the actors that hold its other stages."""

    def __init__(self, work: Work, stages: tuple[Any, ...]) -> None:
        self._work, self._stages = work, stages

    def load(self) -> tuple[Model, Started]:
        """Compare the file and load it. Raises ClusterError, which names the node."""
        w = self._work
        with named_errors():
            source = w.source()
            if w.n_stages == 1:
                model = Model(source, w.options)
            else:
                calls = calls_to(use_ray(), [*self._stages], w.patience)
                model = stage_model(source, w.options, 0, calls, w.n_stages, w.shares)
            model.load_weights()
        return model, Started.of(model)


class RayHosts:
    """n: replicas of the work. needs: resources of one process, by Ray's names. wait: seconds for
    the cluster to have them."""

    def __init__(
        self, ray: Any, work: Work, n: int, needs: Mapping[str, float], wait: float
    ) -> None:  # fmt: skip
        self._ray, self._work, self.n_stages = ray, work, work.n_stages
        self._wanted = n * work.n_stages, needs, wait
        self._places: Places | None = None
        self._handles: dict[int, list[Any]] = {}

    async def open(self) -> None:
        self._places = await asyncio.to_thread(Places, self._ray, *self._wanted)

    def make(self, i: int) -> tuple[Actor, list[Actor]]:
        assert self._places is not None
        at = i * self.n_stages
        stages = self._handles[i] = make_stages(self._places, at + 1, self._work)
        handle = self._places.actor(Replica, at, _Loading(self._work, tuple(stages)))
        self._handles[i] = [*stages, handle]
        return RayActor(handle), [RayActor(stage) for stage in stages]

    def end(self, i: int) -> None:
        for handle in self._handles.pop(i, ()):
            with suppress(Exception):  # it may be gone already
                self._ray.kill(handle)

    async def close(self) -> None:
        if self._places is not None:
            await asyncio.to_thread(self._places.close)
            self._places = None


def _line(error: BaseException) -> str:
    """The first of Ray's."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
