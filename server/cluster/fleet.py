"""The replicas: started together, and made again where one is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gguflow.engine.cluster.errors import ClusterError
from gguflow.engine.dataclass import dataclass

from .actor import Hosts
from .link import Link, ReplicaLostError
from .replica import Parcel

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0  # seconds before a replica is made again
log = logging.getLogger("gguflow.server")


@dataclass(frozen=True)
class FleetConfig:
    """n_replicas: of the model. wait: seconds for a request while there is no replica. silence:
    seconds without an answer after which a process is lost."""

    n_replicas: int
    wait: float = 30.0
    silence: float = 30.0


class Fleet:
    """links: the replicas that take requests. last: why one was lost, or did not come back.

    came, went, told: set by whoever sends requests; told of a replica that has its model, of one
    that is lost, and of what each says.
    """

    def __init__(self, hosts: Hosts, config: FleetConfig) -> None:
        self._hosts, self.config = hosts, config
        self.links: list[Link] = []
        self.last: str | None = None
        self.came: Callable[[Link], None] = lambda _: None
        self.went: Callable[[Link], None] = lambda _: None
        self.told: Callable[[Link, Parcel], None] = lambda *_: None
        self._pids: dict[int, list[tuple[str, int]]] = {}
        self._program = ""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """All of them, side by side. Raises ClusterError: what is wrong with one is wrong."""
        await self._hosts.open()
        tasks = [asyncio.create_task(self._bring(i)) for i in range(self.config.n_replicas)]
        try:
            links = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.close()
            raise
        self._tasks = [asyncio.create_task(self._keep(i, x)) for i, x in enumerate(links)]

    async def close(self) -> None:
        """End all processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for i in range(self.config.n_replicas):
            self._end(i)
        await self._hosts.close()
        self.links.clear()

    def processes(self) -> list[tuple[str, int]]:
        """What runs, and the number of its process on its node."""
        return [p for i in sorted(self._pids) for p in self._pids[i]]

    async def _bring(self, i: int) -> Link:
        """Replica i with its model. Raises ClusterError."""
        actor, stages = self._hosts.make(i)
        link = Link(actor, self.config.silence, lambda link, parcel: self.told(link, parcel))
        for k, started in enumerate(await link.start(stages)):
            self._program = self._program or started.program
            if started.program != self._program:
                raise ClusterError(
                    f"node {started.node} has {started.program}, another one {self._program}: "
                    "their bits differ, and a text could not go on elsewhere"
                )
            what = f"replica {i}" if not stages else f"stage {k} of replica {i}"
            log.info("%s is on node %s, process %d", what, started.node, started.pid)
            self._pids.setdefault(i, []).append((what, started.pid))
        self.links.append(link)
        self.came(link)
        return link

    async def _keep(self, i: int, link: Link) -> None:
        """Take what replica i says, and make it again when it is lost."""
        while True:
            try:
                await link.run()
            except ReplicaLostError as e:
                self.last = str(e)
                log.warning("replica %d is lost: %s", i, e)
            self.links.remove(link)
            self.went(link)
            link = await self._again(i)

    async def _again(self, i: int) -> Link:
        pause = FIRST_PAUSE
        while True:
            self._end(i)
            await asyncio.sleep(pause)
            try:
                return await self._bring(i)
            except Exception as e:
                self.last = str(e)
                log.warning("replica %d does not come back: %s", i, e)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _end(self, i: int) -> None:
        self._pids.pop(i, None)
        self._hosts.end(i)
