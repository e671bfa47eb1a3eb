"""Stages as Ray actors: the process of one, and calls to it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from gguflow.engine.backends.base import Live

from .errors import ClusterError
from .holder import Holder, stage_model
from .nodes import Places
from .part import PlanId
from .stage import Calls, Values
from .work import Started, Work, named_errors

# Arrays up to this size travel as bytes, of which Ray makes less than of arrays.
SMALL = 64 << 10
Flat = dict[str, Any]


def flat(values: Values) -> Flat:
    """Values as they travel."""
    return {
        name: (x.dtype.str, x.shape, x.tobytes()) if x.nbytes <= SMALL else x
        for name, x in values.items()
    }


def full(values: Flat) -> Values:
    """Values as they were before."""
    return {
        name: np.frombuffer(v[2], v[0]).reshape(v[1]) if isinstance(v, tuple) else v
        for name, v in values.items()
    }


class StageActor:
    """The process that holds stage `index`. `start` first, then what `Calls` lists."""

    def __init__(self, work: Work, index: int) -> None:
        self._work, self._index = work, index
        self._plans: dict[int, tuple[int, PlanId]] = {}

    def start(self) -> Started:
        """Compare the file and load what is this stage's. Raises ClusterError, which names the
        node."""
        w = self._work
        with named_errors():
            model = stage_model(w.source(), w.options, self._index, {}, w.n_stages, w.shares)
            model.load_weights()
        self._holder = Holder(model)
        return Started.of(model)

    def open(self, number: int, cache: int, plan: PlanId, fingerprint: str) -> tuple[str, ...]:
        """`Calls.open` of a plan that `run` has by its number from then on."""
        self._plans[number] = cache, plan
        return self._holder.open(cache, plan, fingerprint)

    def run(
        self, number: int, live: Live | None, values: Flat, timed: bool
    ) -> tuple[Flat, bytes | None]:
        """`Calls.run` with values as they travel."""
        cache, plan = self._plans[number]
        found, ns = self._holder.run(cache, plan, live, full(values), timed)
        return flat(found), None if ns is None else ns.tobytes()

    def call(self, name: str, *args: Any) -> Any:
        """One of `Calls`."""
        return getattr(self._holder, name)(*args)


class RayCalls:
    """`Calls` to an actor. Each waits for its answer, at most `patience` seconds; what goes wrong
    is a ClusterError, after which the stage is not to be used again."""

    def __init__(self, ray: Any, actor: Any, index: int, patience: float) -> None:
        self._ray, self._actor, self._index, self._patience = ray, actor, index, patience
        self._numbers: dict[tuple[int, PlanId], int] = {}

    def _get(self, name: str, *args: Any) -> Any:
        return self._wait(self._actor.call.remote(name, *args))

    def _wait(self, ref: Any) -> Any:
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        try:
            return self._ray.get(ref, timeout=self._patience)
        except GetTimeoutError:
            raise ClusterError(
                f"stage {self._index} gave no answer for {self._patience:g} s"
            ) from None
        except RayTaskError as e:
            if isinstance(e.cause, ClusterError):
                raise e.cause from None
            raise ClusterError(f"stage {self._index}: {e.cause}") from None
        except RayError as e:
            why = str(e).strip().splitlines()[0][:200]
            raise ClusterError(f"stage {self._index} is lost: {why}") from None

    def open(self, cache: int, plan: PlanId, fingerprint: str) -> tuple[str, ...]:
        number = self._numbers.setdefault((cache, plan), len(self._numbers))
        ref = self._actor.open.remote(number, cache, plan, fingerprint)
        found: tuple[str, ...] = self._wait(ref)
        return found

    def run(
        self, cache: int, plan: PlanId, live: Live | None, values: Values, timed: bool
    ) -> tuple[Values, np.ndarray | None]:
        number = self._numbers[cache, plan]
        ref = self._actor.run.remote(number, live, flat(values), timed)
        found, ns = self._wait(ref)
        return full(found), None if ns is None else np.frombuffer(ns, np.int64)

    def fetch(self, cache: int, plan: PlanId, name: str, at: int, nbytes: int) -> np.ndarray:
        return np.asarray(self._get("fetch", cache, plan, name, at, nbytes))

    def read(self, cache: int, name: str, at: int, nbytes: int) -> np.ndarray:
        return np.asarray(self._get("read", cache, name, at, nbytes))

    def write(self, cache: int, name: str, at: int, data: np.ndarray) -> None:
        self._get("write", cache, name, at, data)

    def drop(self, cache: int) -> None:
        with suppress(Exception):  # called wherever Python frees memory; the stage may be gone
            self._actor.call.remote("drop", cache)


def make_stages(places: Places, first: int, work: Work) -> list[Any]:
    """Actors of all stages but the first, on the places behind `first`; none is started."""
    return [
        places.actor(StageActor, first + k - 1, work, k) for k in range(1, work.n_stages)
    ]  # fmt: skip


def calls_to(ray: Any, actors: list[Any], patience: float) -> dict[int, Calls]:
    """By stage."""
    return {k: RayCalls(ray, a, k, patience) for k, a in enumerate(actors, 1)}
