"""A replica: an engine in a process of its own, asked for by calls from another one.

Requests come one by one; what has come of them all since the last look goes back in one answer, so
that a step costs one call, however many sequences it was of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from gguflow.engine.cluster.work import Started
from gguflow.engine.constraints.vocabulary import Vocabulary
from gguflow.engine.dataclass import dataclass, field, replace
from gguflow.engine.model import Model
from gguflow.engine.profile import Profile
from gguflow.engine.serving.aio import AsyncEngine
from gguflow.engine.serving.engine import EngineStats
from gguflow.engine.serving.request import RequestId, Token
from gguflow.server.memory import memory_of
from gguflow.server.monitor import Step, WatchedEngine

from .travel import Parted, Row, row

BEAT = 1.0  # seconds after which a look is answered though nothing has come
STATS_EVERY = 0.25  # seconds between two tellings of statistics


@dataclass
class Parcel:
    """What has come since the last look. lost: why nothing more will. stats, steps, sequences: of
    the engine, where they are told."""

    rows: list[Row] = field(default_factory=list)
    lost: str | None = None
    stats: EngineStats | None = None
    steps: list[Step] = field(default_factory=list)
    sequences: list[list[int]] = field(default_factory=list)


class _Pump(AsyncEngine):
    """Steps an engine and keeps what comes of it in one list, by the requests' keys."""

    def __init__(self, engine: WatchedEngine) -> None:
        super().__init__(engine, warms=True)
        self.keys: dict[RequestId, int] = {}
        self.rows: list[Row] = []
        self._waiter: asyncio.Future[None] | None = None

    def add(self, key: int, request: Any) -> RequestId:
        """Raises what `Engine.add` does."""
        id = self.engine.add(request)
        self.keys[id] = key
        self._wake.set()
        return id

    def cancel(self, id: RequestId) -> None:
        self.engine.cancel(id)
        self._wake.set()

    def put(self, r: Row) -> None:
        self.rows.append(r)
        self._notify()

    async def come(self) -> None:
        """Wait until there is something, at most a beat."""
        if self.rows or self.failed:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(self._waiter, BEAT)
        except TimeoutError:
            pass
        finally:
            self._waiter = None

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _hand_out(self, tokens: list[Token]) -> None:
        keys, put = self.keys, self.rows.append
        for token in tokens:
            over = token.finish is not None
            put(row(keys.pop(token.request) if over else keys[token.request], token))
        self._notify()

    def _fail(self, error: Exception) -> None:
        super()._fail(error)
        self._notify()


class Loading(Protocol):
    """How a replica comes to its model."""

    def load(self) -> tuple[Model, Started]:
        """The model with its weights, and where it is."""


class Replica:
    """The process. `start` first; then `submit`, `cancel` and `take` from one place alone."""

    def __init__(self, loading: Loading) -> None:
        self._loading = loading
        self._ids: dict[int, RequestId | None] = {}  # by key; None while its processor is made
        self._told = 0.0
        self._n_told = 0  # steps

    async def start(self) -> Started:
        """Load the model, begin. Raises what `Loading.load` does."""
        self._model, started = await asyncio.to_thread(self._loading.load)
        self._pump = _Pump(WatchedEngine(self._model))
        await self._pump.__aenter__()
        return started

    async def close(self) -> None:
        """End the engine, if it began."""
        if hasattr(self, "_pump"):
            await self._pump.close()

    @property
    def tokenizer(self) -> Any:
        """What processors are made with, as is `vocabulary`."""
        return self._model.tokenizer

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self._model.tokenizer, self._model.hp.n_vocab)

    async def submit(self, key: int, data: Parted) -> None:
        """A request. What is wrong with it comes back as its last token."""
        self._ids[key] = None
        try:
            request = data.request
            if data.recipe is not None:  # which may take a while
                request = await asyncio.to_thread(data.joined, self)
            if key not in self._ids:  # cancelled meanwhile
                return
            self._ids[key] = self._pump.add(key, request)
        except Exception as e:
            self._ids.pop(key, None)
            self._pump.put((key, Token(0, None, 0, "error", error=e)))

    async def cancel(self, key: int) -> None:
        """Nobody waits for it any more."""
        id = self._ids.pop(key, None)
        if id is not None:
            self._pump.cancel(id)

    async def take(self) -> Parcel:
        """What has come since the last call, or nothing after a beat."""
        pump = self._pump
        await pump.come()
        parcel = Parcel(pump.rows)
        pump.rows = []
        for r in parcel.rows:
            if (r[1].finish if len(r) == 2 else r[3]) is not None:
                self._ids.pop(r[0], None)
        if pump.failed is not None and not parcel.rows:
            parcel.lost = str(pump.failed)
        if (now := time.monotonic()) - self._told > STATS_EVERY:
            self._told = now
            self._tell(parcel)
        return parcel

    def _tell(self, parcel: Parcel) -> None:
        engine = self._pump.engine
        assert isinstance(engine, WatchedEngine)
        parcel.stats = replace(engine.stats)
        n = engine.n_seen
        steps: Sequence[Step] = [*engine.steps]
        parcel.steps = [*steps[len(steps) - min(len(steps), n - self._n_told) :]]
        self._n_told = n
        parcel.sequences = engine.sequences()

    async def memory(self) -> dict[str, Any]:
        """See `memory_of`."""
        return memory_of(self._model)

    async def profile(self) -> Profile:
        """The next few steps, op by op."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Profile] = loop.create_future()

        def settle(profile: Profile) -> None:
            if not done.done():
                done.set_result(profile)

        def deliver(profile: Profile) -> None:
            loop.call_soon_threadsafe(settle, profile)

        engine = self._pump.engine
        assert isinstance(engine, WatchedEngine)
        engine.watch_ops(deliver)
        return await done
