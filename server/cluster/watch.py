"""What all replicas together say of themselves, as one engine would."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gguflow.engine.dataclass import fields
from gguflow.engine.profile import Profile
from gguflow.engine.serving.speculation import Drafting
from gguflow.engine.serving.stats import EngineStats
from gguflow.server.errors import unavailable
from gguflow.server.monitor import KEPT_STEPS, Step

from .actor import ActorLostError

if TYPE_CHECKING:
    from .fleet import Fleet
    from .link import Link
    from .replica import Parcel

NONE = EngineStats(0, 0, 0, 0, 0, 0, 0, {}, {}, Drafting())


class ClusterWatch:
    """Figures are those that were told last, a moment ago."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.steps: deque[Step] = deque(maxlen=KEPT_STEPS)
        self.n_seen = 0
        self._now: dict[Link, EngineStats] = {}
        self._sequences: dict[Link, list[list[int]]] = {}
        self._profiles: set[asyncio.Future[Profile]] = set()
        self._gone: list[EngineStats] = []  # of those that are lost: their counts stay

    def take(self, link: Link, parcel: Parcel) -> None:
        """What a replica has told."""
        if parcel.stats is None:
            return
        self._now[link], self._sequences[link] = parcel.stats, parcel.sequences
        self.steps.extend(parcel.steps)
        self.n_seen += len(parcel.steps)

    @property
    def stats(self) -> EngineStats:
        """Sums over the replicas; what lost ones had counted stays, but not their pages."""
        for link in [k for k in self._now if k.lost is not None]:
            s = self._now.pop(link)
            del self._sequences[link]
            counts = s.n_steps, s.n_prompt, s.n_found, s.n_generated, s.n_preempted
            lost = EngineStats(*counts, 0, 0, {}, {}, s.drafting)
            self._gone = [_sum([*self._gone, lost])]
        return _sum([*self._gone, *self._now.values()])

    @property
    def has_work(self) -> bool:
        """Whether requests are on their way."""
        return any(link.n_active for link in self._fleet.links)

    def sequences(self) -> list[list[int]]:
        """Of all replicas, see `WatchedEngine.sequences`."""
        return [row for rows in self._sequences.values() for row in rows]

    async def memory(self) -> dict[str, Any]:
        """Of one of the replicas, which all have the same forecast. Raises ApiError where all are
        lost."""
        try:
            found: dict[str, Any] = await self._fleet.links[0].memory()
        except (ActorLostError, IndexError):
            raise unavailable("all replicas are lost") from None
        return found

    def watch_ops(self, done: Callable[[Profile], None]) -> None:
        """Record the next steps of the replica with most to do, op by op."""
        links = [*self._fleet.links]
        if links:
            busiest = max(links, key=lambda link: link.n_active)
            task = asyncio.ensure_future(busiest.profile())
            self._profiles.add(task)  # the event loop itself keeps no hold of it

            def over(task: asyncio.Future[Profile]) -> None:
                self._profiles.discard(task)
                if not task.cancelled() and task.exception() is None:
                    done(task.result())

            task.add_done_callback(over)


def _sum(all: list[EngineStats]) -> EngineStats:
    if not all:
        return NONE
    numbers = [f.name for f in fields(EngineStats) if f.name.startswith("n_")]
    found: dict[str, Any] = {}
    for name in numbers:
        values = [getattr(s, name) for s in all]
        if isinstance(values[0], dict):
            total = Counter[str]()
            for v in values:
                total.update(v)
            found[name] = dict(total)
        else:
            found[name] = sum(values)
    drafting = Drafting()
    for f in fields(Drafting):
        setattr(drafting, f.name, sum(getattr(s.drafting, f.name) for s in all))
    return EngineStats(**found, drafting=drafting)
