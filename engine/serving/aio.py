"""An engine for asyncio: requests from coroutines, steps on a thread of their own.

async with AsyncEngine(Engine(model, n_seqs=16)) as engine:
    async for token in engine.generate(Request(ids, max_tokens=64)):
        ...
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

from .engine import Engine
from .request import Request, RequestId, Token


class EngineBusyError(RuntimeError):
    """As many requests are in work as were to be accepted."""


class EngineClosedError(RuntimeError):
    """The engine was closed, or a step raised what the message says, before the request ended."""


class AsyncEngine:
    """Steps an engine while it has work. Everything but the steps is called in the event loop.

    most: requests in work at once, those that wait for room included; beyond them `generate` raises
    EngineBusyError. What a slow reader has not taken is kept, and bounded by its request: the
    context is.
    """

    def __init__(self, engine: Engine, most: int = 1024) -> None:
        self.engine = engine
        self.most = most
        self._queues: dict[RequestId, asyncio.Queue[Token | Exception]] = {}
        self._wake = threading.Event()
        self._closing = False
        self._failed: Exception | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> AsyncEngine:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """End the thread after the step it is at. Requests in work raise EngineClosedError."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._fail(EngineClosedError("the engine was closed"))

    async def generate(self, request: Request) -> AsyncIterator[Token]:
        """A request's tokens as they are made. Leaving early, or cancelling the task, cancels the
        request. Raises what `Engine.add` does, EngineBusyError and EngineClosedError."""
        if self._failed is not None:
            raise self._failed
        if self._thread is None:
            raise EngineClosedError("the engine was not entered: use `async with`")
        if len(self._queues) >= self.most:
            raise EngineBusyError(f"{self.most} requests are in work")
        queue: asyncio.Queue[Token | Exception] = asyncio.Queue()
        # No await in between: the queue is there before a step's tokens can be handed out.
        id = self.engine.add(request)
        self._queues[id] = queue
        self._wake.set()
        finished = False
        try:
            while not finished:
                token = await queue.get()
                if isinstance(token, Exception):
                    raise token
                finished = token.finish is not None
                yield token
        finally:
            del self._queues[id]
            if not finished:
                self.engine.cancel(id)
                self._wake.set()

    # -- the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        assert self._loop is not None
        while not self._closing:
            if not self.engine.has_work:
                self._wake.wait()
                self._wake.clear()
                continue
            try:
                tokens = self.engine.step()
            except Exception as e:
                closed = EngineClosedError(f"a step failed: {e}")
                closed.__cause__ = e
                self._loop.call_soon_threadsafe(self._fail, closed)
                return
            if tokens:
                self._loop.call_soon_threadsafe(self._hand_out, tokens)

    def _hand_out(self, tokens: list[Token]) -> None:
        for token in tokens:
            queue = self._queues.get(token.request)
            if queue is not None:  # else its reader has left
                queue.put_nowait(token)

    def _fail(self, error: Exception) -> None:
        self._failed = self._failed or error
        for queue in self._queues.values():
            queue.put_nowait(error)
