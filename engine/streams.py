"""Generations of a model for asyncio: all that are on their way are steps of one engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from gguflow.engine.chat import Turn
from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.generate import Asked, Reader
from gguflow.engine.piece import Piece
from gguflow.engine.pool import Pool
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import RequestId, Token
from gguflow.engine.threads import Thread

if TYPE_CHECKING:
    from gguflow.engine.model import Model

T = TypeVar("T")
LEAST_SEQS = 4  # generations at once, which share the rows of the model's context


@dataclass
class _Reader:
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Token | Exception] = field(default_factory=asyncio.Queue)

    def put(self, item: Token | Exception) -> bool:
        """From any thread; whether somebody can still read it."""
        try:
            self.loop.call_soon_threadsafe(self.queue.put_nowait, item)
        except RuntimeError:  # the loop was closed
            return False
        return True


class Streams:
    """An engine with a thread that steps it while there is work, and ends when there is none."""

    def __init__(self, model: Model) -> None:
        o = model.options
        n_seqs, n_cache = max(LEAST_SEQS, o.n_seqs), o.n_cache or o.n_ctx * o.n_seqs
        self._model = model
        self._engine = Engine(model, n_seqs, n_cache)
        self._readers: dict[RequestId, _Reader] = {}
        self._lock = threading.Lock()
        self._thread: Thread | None = None
        self._threads = Pool()

    async def _apart(self, job: Callable[[], T]) -> T:
        """What takes too long for the event loop, in a thread. Not in one of the loop's own: one
        that gets no memory as it starts would hold up the loop for ever (server/apart.py)."""
        return await asyncio.wrap_future(self._threads.submit(job))

    async def generate(
        self, asked: Asked, ready: Callable[[Asked], Asked]
    ) -> AsyncGenerator[Piece, None]:
        """The pieces of a generation. Leaving early, or cancelling the task, ends it. ready: what a
        constraint is compiled by."""
        if asked.constraint is not None:  # takes too long for the event loop
            asked = await self._apart(partial(ready, asked))
        reader, pieces = _Reader(asyncio.get_running_loop()), Reader(self._model, asked, "a stream")
        with self._lock:
            id = self._engine.add(asked.request)
            self._readers[id] = reader
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._work, name="streams", daemon=True)
                self._thread.start()
        try:
            while not pieces.is_over:
                item = await reader.queue.get()
                if isinstance(item, Exception):
                    raise item
                for piece in pieces.read(item):
                    yield piece
        finally:
            with self._lock:
                del self._readers[id]
                self._engine.cancel(id)  # nothing happens when it is over

    async def chat(self, make: Callable[[], Turn]) -> AsyncGenerator[Piece, None]:
        """The pieces of an answer. make: its conversation, which takes too long for the event
        loop."""
        turn = await self._apart(make)
        apart = turn.apart()
        async with aclosing(self.generate(turn.asked, lambda asked: asked)) as pieces:
            async for piece in pieces:
                for part in apart.push(piece):
                    yield part

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._engine.has_work:
                    self._thread = None
                    return
            try:
                tokens = self._engine.step()
            except Exception as e:
                self._fail(e)
                return
            for token in tokens:
                reader = self._readers.get(token.request)
                if reader is not None and not reader.put(token):
                    self._engine.cancel(token.request)

    def _fail(self, error: Exception) -> None:
        """A step raised: all that are on their way end with it, and a new engine begins."""
        with self._lock:
            self._thread = None
            o = self._engine.model.options
            self._engine = Engine(self._model, o.n_seqs, o.n_cache)
            readers = list(self._readers.values())
        for reader in readers:
            reader.put(error)
