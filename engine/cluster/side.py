"""A stage that runs at the same time as the others: its program waits on its own device for what
theirs hand over, in memory that both processes have (`crossing`)."""

from __future__ import annotations

import weakref
from itertools import count

from gguflow.engine.backends.base import Live, Meets, Ticks
from gguflow.engine.runtime.places import BoundMemory, host_array

from .calls import Calls
from .crossing import CrossingMemory
from .part import PlanId, side_of
from .remote import RemoteProgram, cache_of

_NUMBERS = count(1)


class SideProgram(RemoteProgram):
    """It is told to start with the inputs it reads; what others read of it that a host looks at
    comes when it has ended."""

    def __init__(self, calls: Calls, backend: str, memory: BoundMemory, meets: Meets) -> None:
        common = next(m for m in meets.memory if isinstance(m, CrossingMemory))
        first = next(i for i, s in enumerate(memory.plan.segments) if s.backend == backend)
        part = side_of(memory.plan, first, (next(_NUMBERS), common.name))
        super().__init__(calls, part, memory, cache_of(calls, part, memory))
        self.kernels = calls.open(self._cache, part.plan, part.fingerprint)
        self._keep = meets.memory
        self._is_timed = False
        weakref.finalize(self, _close, calls, self._cache, part.plan).atexit = False

    def start(self, timed: bool = False, live: Live | None = None) -> None:
        self._is_timed = timed
        values = {t.name: host_array(self._memory, t) for t in self._part.takes}
        self._calls.begin(self._cache, self._part.plan, live, values, timed)

    def finish(self) -> Ticks | None:
        found, ns = self._calls.end(self._cache, self._part.plan)
        self._take(found)
        return Ticks(ns, of_host=False) if self._is_timed and ns is not None else None


def _close(calls: Calls, cache: int, plan: PlanId) -> None:
    calls.close(cache, plan)
