"""The engine that the server sees over replicas: the interface of `AsyncEngine`.

A request gets its seed here. Should its replica be lost, it goes to another one as it was: its
tokens are a function of the request (docs/equal-bits.md), so what has been handed out already is
left out the second time, and held against what comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from gguflow.engine.cluster.errors import ClusterError
from gguflow.engine.dataclass import replace
from gguflow.engine.sampling import seed_of
from gguflow.engine.serving.aio import EngineBusyError, EngineClosedError
from gguflow.engine.serving.request import EmbedRequest, Request, Token

from .fleet import Fleet
from .link import Link, ReplicaLostError
from .router import Router
from .travel import Parted, part
from .watch import ClusterWatch

TRIES = 3  # replicas that a request may be lost with: it may be what they die of
log = logging.getLogger("gguflow.server")


class ClusterEngine:
    """fleet: the replicas, each with room for n_seqs sequences and n_pages pages. most: requests in
    work at once."""

    def __init__(
        self, fleet: Fleet, n_seqs: int, n_pages: int, most: int
    ) -> None:  # fmt: skip
        self._fleet, self._most = fleet, most
        self._n_seqs, self._n_pages = n_seqs, n_pages
        self.router = Router()
        self.watched = ClusterWatch(fleet)
        self.n_retried = 0
        self._n_inside = 0
        self._failed: Exception | None = None
        self._come = asyncio.Event()
        fleet.came, fleet.went, fleet.told = self._came, self.router.remove, self.watched.take

    async def __aenter__(self) -> ClusterEngine:
        await self._fleet.start()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    @property
    def failed(self) -> Exception | None:
        """Why no requests are accepted. A lost replica is no reason: another one is made."""
        return self._failed

    async def close(self) -> None:
        """End all replicas. Requests in work raise EngineClosedError."""
        self._failed = self._failed or EngineClosedError("the engine was closed")
        self._come.set()
        await self._fleet.close()

    async def generate(self, request: Request | EmbedRequest) -> AsyncIterator[Token]:
        """As `AsyncEngine.generate`."""
        batches = self.batches(request)
        try:
            async for tokens in batches:
                for token in tokens:
                    yield token
        finally:
            await batches.aclose()

    async def batches(self, request: Request | EmbedRequest) -> AsyncGenerator[list[Token], None]:
        """As `AsyncEngine.batches`: the same tokens, whatever happens to the replica that makes
        them."""
        if self._n_inside >= self._most:
            raise EngineBusyError(f"{self._most} requests are in work")
        if isinstance(request, Request):
            seed = seed_of(request.settings)
            request = replace(request, settings=replace(request.settings, seed=seed))
        data = part(request)
        seen: list[int | None] = []
        self._n_inside += 1
        try:
            for _ in range(TRIES):
                try:
                    async for tokens in self._try(request, data):
                        if fresh := _fresh(tokens, seen):
                            yield fresh
                    return
                except ReplicaLostError as e:
                    self.n_retried += 1
                    log.warning("a request goes to another replica: %s", e)
            raise EngineClosedError(f"lost with {TRIES} replicas, one after the other")
        finally:
            self._n_inside -= 1

    async def _try(
        self, request: Request | EmbedRequest, data: Parted
    ) -> AsyncIterator[list[Token]]:
        """The request's tokens from one replica. Raises ReplicaLostError."""
        salt = request.cache_salt if isinstance(request, Request) else b""
        route = await self._route(request.ids, salt)
        link: Link = route.replica
        try:
            key, box = link.open(data)
            finished = False
            try:
                while not finished:
                    tokens = await box.take()
                    finished = tokens[-1].finish is not None
                    self.router.begun(route)
                    yield tokens
            finally:
                link.close(key, finished)
        finally:
            self.router.end(route)

    async def _route(self, ids: Sequence[int], salt: bytes) -> Any:
        """A replica, which is waited for if there is none. Raises EngineClosedError."""
        end = asyncio.get_running_loop().time() + self._fleet.config.wait
        while self._failed is None:
            try:
                return self.router.choose(ids, salt)
            except LookupError:
                self._come.clear()
            try:
                async with asyncio.timeout_at(end):
                    await self._come.wait()
            except TimeoutError:
                why = self._fleet.last or "they are being loaded"
                raise EngineClosedError(
                    f"all replicas are lost, and none came back within "
                    f"{self._fleet.config.wait:g} s: {why}"
                ) from None
        raise self._failed

    def _came(self, link: Link) -> None:
        self.router.add(link, self._n_seqs, self._n_pages)
        self._come.set()


def _fresh(tokens: list[Token], seen: list[int | None]) -> list[Token]:
    """Those that nobody has had; `seen` gets them. Raises EngineClosedError where a token that
    somebody had comes out otherwise: nothing that goes on from it would be of that text."""
    fresh = []
    for token in tokens:
        if token.index >= len(seen) or token.id is None:
            seen.append(token.id)
            fresh.append(token)
        elif token.id != seen[token.index]:
            raise EngineClosedError(
                f"token {token.index} of the text is another one on another replica: its machine "
                "does not compute the same bits"
            ) from ClusterError("unequal bits")
    return fresh
