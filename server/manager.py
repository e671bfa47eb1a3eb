"""The models: loaded when first asked for, put away when nobody does or others need the memory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from gguflow.engine.calls.formats import ToolFormat, tool_format
from gguflow.engine.constraints.vocabulary import Vocabulary
from gguflow.engine.model import Model
from gguflow.engine.serving.aio import AsyncEngine
from gguflow.engine.serving.request import EmbedRequest, Request, Token
from gguflow.models.chat import ChatTemplate
from gguflow.models.chat_parts import ChatForm

from . import garbage
from .admission import Gate
from .config import ModelSpec, ServerConfig
from .errors import ApiError, busy, unavailable
from .monitor import Watched, WatchedEngine

log = logging.getLogger("gguflow.server")
_AHEAD = 4  # requests let in beyond the engine's places, so that none is empty for a step


class AnyEngine(Protocol):
    """What requests are given to: an `AsyncEngine`, or what stands for those of a cluster."""

    @property
    def failed(self) -> Exception | None: ...
    async def __aenter__(self) -> Any: ...
    async def close(self) -> None: ...
    def generate(self, request: Request | EmbedRequest) -> AsyncIterator[Token]: ...
    def batches(
        self, request: Request | EmbedRequest
    ) -> AsyncGenerator[list[Token], None]: ...  # fmt: skip


class Cluster(Protocol):
    """Engines on other machines: all of a model's replicas together are one."""

    n_replicas: int

    def engine(self, spec: ModelSpec, model: Model, most: int) -> tuple[AnyEngine, Watched]:
        """The engine for a model, `most` requests at once, and what is seen of it."""


class Loaded:
    """A model in memory with its engine.

    nbytes: what it takes. n_users: requests that hold it. template, tools, form: of its
    conversations, how it writes calls, and of its answers. cluster: where its engines are, and not
    here; the model then has no weights.
    """

    def __init__(
        self, spec: ModelSpec, model: Model, n_queue: int, cluster: Cluster | None = None
    ) -> None:
        self.spec, self.model = spec, model
        self.tokenizer: Any = model.tokenizer
        self.template = ChatTemplate.for_model(
            model.source.metadata, model.tokenizer, spec.template
        )
        self.tools: ToolFormat = tool_format(self.template.source)
        self.form = ChatForm.of(self.template.source)
        n_seqs = model.options.n_seqs * (1 if cluster is None else cluster.n_replicas)
        most = n_queue + n_seqs + _AHEAD
        self.engine: AnyEngine
        self.watched: Watched
        if cluster is None:
            self.watched = watched = WatchedEngine(model)
            self.engine = AsyncEngine(watched, most, warms=True)
        else:
            self.engine, self.watched = cluster.engine(spec, model, most)
        self.gate = Gate(n_seqs + min(_AHEAD, n_seqs), n_queue)
        guessing = model.speculation
        draft = None if guessing is None else guessing.draft
        self.nbytes = model_bytes(model) + (0 if draft is None else model_bytes(draft))
        self.n_users = 0
        self.used = time.monotonic()

    @property
    def n_ctx(self) -> int:
        """Tokens of a sequence."""
        return self.model.options.n_ctx

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer as constraints see it; made when the first one comes."""
        return self.model.vocabulary

    @cached_property
    def pieces(self) -> Pieces:
        """What each token shows, made when it first comes."""
        return Pieces(self.tokenizer)

    @cached_property
    def longest_piece(self) -> int:
        """Bytes of the longest token: a text of so many times the context's cannot fit."""
        tokenizer = self.tokenizer
        return max(len(tokenizer.piece(i)) for i in range(tokenizer.n_vocab))


class Pieces(dict[int, bytes]):
    """Tokens to the bytes that show of them: a stream of text looks one up for every token."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> bytes:
        tokenizer = self._tokenizer
        hidden = token >= tokenizer.n_vocab or tokenizer.is_special(token)
        data: bytes = b"" if hidden else tokenizer.piece(token)
        self[token] = data
        return data


def _let_go(task: asyncio.Task[Loaded]) -> None:
    """The one for whom a model was held has left."""
    if not task.cancelled() and task.exception() is None:
        task.result().n_users -= 1


def model_bytes(model: Model) -> int:
    """What a model takes on all its devices together."""
    plan = model.plan(model.buckets.largest)
    return sum(b.total for b in plan.bytes_by_space().values())


class _Slot:
    """A model that may be asked for."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.loaded: Loaded | None = None
        self.lock = asyncio.Lock()  # one loads or unloads at a time
        self.nbytes = 0  # known once it was prepared
        self.reserved = 0  # bytes set aside while it is loaded
        self.failed = self.lost = False  # its engine; and another one could not be made
        self.created = int(spec.path.stat().st_mtime)

    def rests(self, idle: float) -> bool:
        """Whether nobody has asked for so many seconds."""
        m = self.loaded
        return m is not None and not m.n_users and time.monotonic() - m.used > idle


class ModelManager:
    """Models by name. open: makes a Model of a spec, without weights. finish: told of every model
    that has its weights, before it runs: it may set how tokens are guessed. cluster: where models
    run, instead of here."""

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        config: ServerConfig,
        open: Callable[[ModelSpec], Model],
        finish: Callable[[Model], None] = lambda _: None,
        cluster: Cluster | None = None,
    ) -> None:
        self.config, self._cluster = config, cluster
        self._open, self._finish = open, finish
        self._slots = {spec.name: _Slot(spec) for spec in specs}
        self._adapters = {name: spec.name for spec in specs for name, _ in spec.adapters}
        self._room = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = self.closing = False

    @property
    def names(self) -> list[str]:
        """Names of all models, the default one first."""
        return list(self._slots)

    @property
    def default(self) -> str:
        """The model of requests that name none."""
        return next(iter(self._slots))

    def loaded(self) -> Iterator[Loaded]:
        """The models in memory."""
        return (s.loaded for s in [*self._slots.values()] if s.loaded is not None)

    def lost(self) -> list[str]:
        """Names of the models whose engine failed, and whose last attempt at another one too."""
        return [name for name, slot in self._slots.items() if slot.lost]

    def created(self, name: str) -> int:
        """When a model's file was made, in seconds since 1970."""
        return self._slots[name].created

    def spec(self, name: str) -> ModelSpec:
        """A model's description."""
        return self._slots[name].spec

    @property
    def adapters(self) -> list[str]:
        """Names of all adapters."""
        return list(self._adapters)

    def shown(self, name: str | None) -> str:
        """What an answer calls the model that a request asks for: the adapter, if it named one."""
        return name if name in self._adapters and name is not None else self.find(name)

    def find(self, name: str | None) -> str:
        """The name of the model a request asks for, an adapter's too. Raises ApiError 404."""
        if name is None or name in ("", "default"):
            return self.default
        if name in self._adapters:
            return self._adapters[name]
        if name not in self._slots:
            raise ApiError(
                404, f"model: there is no {name[:200]!r}; /v1/models lists those there are",
                param="model", code="model_not_found",
            )  # fmt: skip
        return name

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[Loaded]:
        """A model for as long as a request needs it. Raises ApiError."""
        slot = self._slots[self.find(name)]
        try:
            loaded = await self._hold(slot)
        except ApiError:
            raise
        except Exception:
            if not self._started:
                raise  # for who started the server
            # A device that is lost, or memory that is gone: the other models go on.
            slot.lost = slot.failed
            log.exception("%s cannot be loaded", slot.spec.name)
            raise unavailable(f"{slot.spec.name} cannot be loaded; the log says why") from None
        try:
            yield loaded
        finally:
            loaded.n_users -= 1
            loaded.used = time.monotonic()
            if not loaded.n_users and self.config.memory:
                await asyncio.shield(self._notify())

    async def _hold(self, slot: _Slot) -> Loaded:
        """The model, which stays for whoever holds it."""
        if self.closing:
            raise unavailable("the server is going down")
        loaded = slot.loaded
        if loaded is not None and loaded.engine.failed is None:
            loaded.n_users += 1
            return loaded
        # Should the client leave, the model is loaded all the same, for whoever comes next.
        task = asyncio.create_task(self._load(slot))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_let_go)
            raise

    async def _load(self, slot: _Slot) -> Loaded:
        """The model, held for whoever asked: nobody may put it away before that one has it."""
        async with slot.lock:
            return await self._loaded(slot)

    async def _loaded(self, slot: _Slot) -> Loaded:
        """The same; the slot is locked."""
        if slot.loaded is not None:
            if slot.loaded.engine.failed is None:
                slot.loaded.n_users += 1
                return slot.loaded
            # Whoever was in work has been told; those who come get a new engine.
            cause = slot.loaded.engine.failed
            log.error("the engine of %s failed", slot.spec.name, exc_info=cause)
            slot.failed = True
            await self._put_away(slot)
        model = await asyncio.to_thread(self._open, slot.spec)
        slot.nbytes = await asyncio.to_thread(model_bytes, model)
        await self._make_room(slot)
        began = time.monotonic()

        def load() -> Loaded:
            if self._cluster is None:
                model.load_weights()
                self._finish(model)
            return Loaded(slot.spec, model, self.config.n_queue, self._cluster)

        try:
            loaded = await asyncio.to_thread(load)
            await loaded.engine.__aenter__()
            loaded.n_users = 1
            slot.loaded = loaded
            slot.failed = slot.lost = False
        finally:
            slot.reserved = 0
            await self._notify()
        seconds = time.monotonic() - began
        log.info("loaded %s (%d bytes) in %.2f s", slot.spec.name, loaded.nbytes, seconds)
        return loaded

    # -- room ------------------------------------------------------------------------------------

    async def _make_room(self, slot: _Slot) -> None:
        """Put models away, the longest unused first, until another one fits."""
        budget = self.config.memory
        if not budget:
            return
        if slot.nbytes > budget:
            raise ApiError(
                400, f"model: {slot.spec.name!r} takes {slot.nbytes} bytes, the models together "
                f"may take {budget}", param="model", code="model_too_large",
            )  # fmt: skip
        async with self._room:
            while self._taken() + slot.nbytes > budget:
                unused = [s for s in self._slots.values() if s.loaded and not s.loaded.n_users]
                if unused:
                    oldest = min(unused, key=lambda s: s.loaded.used if s.loaded else 0.0)
                    await self._put_away(oldest)
                    continue
                try:
                    await asyncio.wait_for(self._room.wait(), self.config.timeout)
                except TimeoutError:
                    raise busy("all the memory is in use by other models", 30) from None
            slot.reserved = slot.nbytes

    def _taken(self) -> int:
        """Bytes of the models in memory, and of those that are on their way there."""
        there = sum(m.nbytes for m in self.loaded())
        return there + sum(s.reserved for s in self._slots.values() if s.loaded is None)

    async def _put_away(self, slot: _Slot) -> None:
        loaded, slot.loaded = slot.loaded, None
        if loaded is None:
            return
        name = slot.spec.name
        await loaded.engine.close()
        del loaded
        await asyncio.to_thread(garbage.collect)
        log.info("put %s away", name)

    async def _notify(self) -> None:
        async with self._room:
            self._room.notify_all()

    async def age(self) -> None:
        """Put away what nobody has asked for since `idle` seconds; runs as long as the server."""
        while True:
            await asyncio.sleep(min(self.config.idle, 60.0) / 4)
            async with self._room:
                for slot in self._slots.values():
                    if slot.rests(self.config.idle):
                        await self._put_away(slot)
                self._room.notify_all()

    async def start(self) -> None:
        """Load the default model, and begin to watch ages."""
        if self.config.idle:
            self._tasks.add(asyncio.create_task(self.age()))
        async with self.use(None):
            self._started = True

    async def close(self) -> None:
        """Put everything away."""
        self.closing = True
        for task in self._tasks:
            task.cancel()
        for slot in self._slots.values():
            await self._put_away(slot)


def unique_names(paths: Sequence[Path], aliases: Sequence[str]) -> list[str]:
    """A name for each file: its alias, else its stem. Raises ValueError for one that two have."""
    names = [*aliases, *(p.stem for p in paths[len(aliases) :])]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f"two models are called {name!r}")
    return names
