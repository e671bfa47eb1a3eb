"""A replica as the process sees it that answers HTTP: requests go there, tokens come back.

One call is always on its way that asks for what has come. A replica is lost when that call fails,
or stays unanswered for long; everybody who waits for tokens of it is told so at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from gguflow.engine.cluster.errors import ClusterError
from gguflow.engine.cluster.work import Started
from gguflow.engine.serving.aio import Mailbox, Telling

from .actor import Actor, ActorLostError
from .replica import Parcel
from .travel import Parted, token_of

_KEYS = count()


class ReplicaLostError(Exception):
    """The replica is gone: what it was asked for has to be asked of another."""


class Link:
    """actor: the replica. silence: seconds without an answer after which it is lost.
    told: gets every parcel. started: known once `start` has returned."""

    def __init__(self, actor: Actor, silence: float, told: Callable[[Link, Parcel], None]) -> None:
        self._actor, self._silence, self._told = actor, silence, told
        self._boxes: dict[int, Mailbox] = {}
        self._telling = Telling()
        self.started: Started | None = None
        self.lost: ReplicaLostError | None = None

    async def start(self, stages: Sequence[Actor] = ()) -> list[Started]:
        """Let it load the model, and the processes of its stages theirs. Raises what
        `Replica.start` does, and ClusterError where a process is gone."""
        try:
            calls = (actor.call("start") for actor in (self._actor, *stages))
            found: list[Started] = [*await asyncio.gather(*calls)]
        except ActorLostError as e:
            raise ClusterError(f"a replica did not start: {e}") from None
        self.started = found[0]
        return found

    async def run(self) -> None:
        """Bring what comes to those who wait for it, until the replica is lost: raises
        ReplicaLostError with the reason."""
        why = "it was told to end"
        try:
            while True:
                parcel: Parcel = await asyncio.wait_for(self._actor.call("take"), self._silence)
                for r in parcel.rows:
                    box = self._boxes.get(r[0])
                    if box is not None:
                        self._telling.put(box, token_of(r))
                self._telling.tell(len(parcel.rows))
                self._told(self, parcel)
                if parcel.lost is not None:
                    why = parcel.lost
                    break
        except ActorLostError as e:
            why = str(e)
        except TimeoutError:
            why = f"no answer for {self._silence:g} s"
        finally:
            s = self.started
            where = f"node {s.node}, process {s.pid}: " if s is not None else ""
            self.lost = ReplicaLostError(f"{where}{why}")
            self._telling.forget()
            for box in self._boxes.values():
                box.fail(self.lost)
        raise self.lost

    def open(self, data: Parted) -> tuple[int, Mailbox]:
        """Send a request; its key, and where its tokens come. Raises ReplicaLostError."""
        if self.lost is not None:
            raise self.lost
        key = next(_KEYS)
        box = self._boxes[key] = Mailbox()
        self._actor.tell("submit", key, data)
        return key, box

    def close(self, key: int, finished: bool) -> None:
        """Nobody reads a request's tokens any more."""
        self._boxes.pop(key, None)
        if not finished and self.lost is None:
            self._actor.tell("cancel", key)

    @property
    def n_active(self) -> int:
        """Requests on their way."""
        return len(self._boxes)

    async def memory(self) -> Any:
        """See `Replica.memory`."""
        return await self._actor.call("memory")

    async def profile(self) -> Any:
        """See `Replica.profile`."""
        return await self._actor.call("profile")
