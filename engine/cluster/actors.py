"""Stages as Ray actors: the process of one, and calls to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np

from gguflow.engine.backends.base import Live

from .calls import Calls, Values
from .connect import node_id, use_ray
from .crossing import Crossing
from .errors import ClusterError
from .holder import Holder, stage_model
from .line import Address, Line, listen
from .nodes import Places
from .part import PlanId
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
        self._turn = threading.Lock()  # calls come by Ray and over a line

    def start(self) -> Started:
        """Compare the file and load what is this stage's. Raises ClusterError, which names the
        node."""
        w = self._work
        with named_errors():
            model = stage_model(w.source(), w.options, self._index, {}, w.n_stages, w.shares)
            model.load_weights()
        self._holder = Holder(model)
        return Started.of(model)

    def listen(self, node: str) -> Address | None:
        """Where a process on this node may ask for the following without Ray; None for one on
        another node."""
        if node != node_id(use_ray()):
            return None
        return listen(lambda name, args: _ASKED[name](self, *args))

    def open(self, number: int, cache: int, plan: PlanId, fingerprint: str) -> tuple[str, ...]:
        """`Calls.open` of a plan that `run` has by its number from then on."""
        with self._turn:
            self._plans[number] = cache, plan
            return self._holder.open(cache, plan, fingerprint)

    def run(
        self, number: int, live: Live | None, values: Flat, timed: bool
    ) -> tuple[Flat, bytes | None]:
        """`Calls.run` with values as they travel."""
        with self._turn:
            cache, plan = self._plans[number]
            found, ns = self._holder.run(cache, plan, live, full(values), timed)
            return flat(found), None if ns is None else ns.tobytes()

    def begin(self, number: int, live: Live | None, values: Flat, timed: bool) -> None:
        """`Calls.begin` with values as they travel."""
        with self._turn:
            cache, plan = self._plans[number]
            self._holder.begin(cache, plan, live, full(values), timed)

    def end(self, number: int) -> tuple[Flat, bytes | None]:
        """`Calls.end` with values as they travel."""
        with self._turn:
            cache, plan = self._plans[number]
            found, ns = self._holder.end(cache, plan)
            return flat(found), None if ns is None else ns.tobytes()

    def close(self, number: int) -> None:
        """`Calls.close`."""
        with self._turn:
            self._holder.close(*self._plans.pop(number))

    def call(self, name: str, *args: Any) -> Any:
        """One of `Calls`."""
        with self._turn:
            return getattr(self._holder, name)(*args)


_ASKED: dict[str, Callable[..., Any]] = {
    "open": StageActor.open,
    "run": StageActor.run,
    "begin": StageActor.begin,
    "end": StageActor.end,
    "call": StageActor.call,
}


class RayCalls:
    """`Calls` to an actor, over a line where it is on this node. Each waits for its answer, at most
    `patience` seconds; what goes wrong is a ClusterError, after which the stage is not to be used
    again."""

    def __init__(self, ray: Any, actor: Any, index: int, patience: float) -> None:
        self._ray, self._actor, self._index, self._patience = ray, actor, index, patience
        self._numbers: dict[tuple[int, PlanId], int] = {}
        self._next = count()
        self._line: Line | None = None
        self._is_met = False

    def _near(self) -> Line | None:
        """A line to it, if it is on this node."""
        if not self._is_met:
            address = self._wait(self._actor.listen.remote(node_id(self._ray)))
            self._line, self._is_met = Line.to(address, f"stage {self._index}"), True
        return self._line

    def _ask(self, name: str, *args: Any) -> Any:
        """What an actor's method of that name answers."""
        if (line := self._near()) is not None:
            return line.ask(self._patience, name, *args)
        return self._wait(getattr(self._actor, name).remote(*args))

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
        if (cache, plan) not in self._numbers:
            self._numbers[cache, plan] = next(self._next)
        number = self._numbers[cache, plan]
        found: tuple[str, ...] = self._ask("open", number, cache, plan, fingerprint)
        return found

    def run(
        self, cache: int, plan: PlanId, live: Live | None, values: Values, timed: bool
    ) -> tuple[Values, np.ndarray | None]:
        number = self._numbers[cache, plan]
        found, ns = self._ask("run", number, live, flat(values), timed)
        return full(found), None if ns is None else np.frombuffer(ns, np.int64)

    def meets(self, name: Crossing) -> str | None:
        found: str | None = self._ask("call", "meets", name) if self._near() is not None else None
        return found

    def begin(
        self, cache: int, plan: PlanId, live: Live | None, values: Values, timed: bool
    ) -> None:
        line = self._near()
        assert line is not None  # for there is memory in common
        line.tell("begin", self._numbers[cache, plan], live, flat(values), timed)

    def end(self, cache: int, plan: PlanId) -> tuple[Values, np.ndarray | None]:
        found, ns = self._ask("end", self._numbers[cache, plan])
        return full(found), None if ns is None else np.frombuffer(ns, np.int64)

    def close(self, cache: int, plan: PlanId) -> None:
        self._leave("close", self._numbers.pop((cache, plan)))

    def fetch(self, cache: int, plan: PlanId, name: str, at: int, nbytes: int) -> np.ndarray:
        return np.array(self._ask("call", "fetch", cache, plan, name, at, nbytes))

    def read(self, cache: int, name: str, at: int, nbytes: int) -> np.ndarray:
        return np.array(self._ask("call", "read", cache, name, at, nbytes))

    def write(self, cache: int, name: str, at: int, data: np.ndarray) -> None:
        self._ask("call", "write", cache, name, at, data)

    def drop(self, cache: int) -> None:
        self._leave("call", "drop", cache)

    def _leave(self, name: str, *args: Any) -> None:
        # Called wherever Python frees memory: the stage may be gone, and after the end of the
        # cluster Ray would join another one for the call.
        with suppress(Exception):
            if self._ray.is_initialized():
                getattr(self._actor, name).remote(*args)


def make_stages(places: Places, first: int, work: Work) -> list[Any]:
    """Actors of all stages but the first, on the places behind `first`; none is started."""
    return [
        places.actor(StageActor, first + k - 1, work, k) for k in range(1, work.n_stages)
    ]  # fmt: skip


def calls_to(ray: Any, actors: list[Any], patience: float) -> dict[int, Calls]:
    """By stage."""
    return {k: RayCalls(ray, a, k, patience) for k, a in enumerate(actors, 1)}
