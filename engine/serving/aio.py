"""An engine for asyncio: requests from coroutines, steps on a thread of their own.

async with AsyncEngine(Engine(model, n_seqs=16)) as engine:
    async for token in engine.generate(Request(ids, max_tokens=64)):
        ...
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from gguflow.engine.threads import Thread

from .engine import Engine
from .request import EmbedRequest, Request, RequestId, Token

# Tokens between a request's first and last are told together: seconds for each sequence of a step,
# at most so many, and only from so many sequences on.
HOLD_EACH, HOLD_MOST, HOLD_FROM = 2e-4, 0.03, 16
CLOSING = 0.002  # seconds between looks at whether the last step is over
REST = 0.5  # seconds without a request after which plans are made: who asks in a loop does not wait


class EngineBusyError(RuntimeError):
    """As many requests are in work as were to be accepted."""


class EngineClosedError(RuntimeError):
    """The engine was closed, or a step raised what the message says, before the request ended."""


class Mailbox:
    """A request's tokens until its reader takes them: a list and one waiter, which costs a fraction
    of a queue for what happens with every token of every request."""

    def __init__(self) -> None:
        self._tokens: list[Token] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, token: Token) -> None:
        """Keep a token; `notify` tells the reader."""
        self._tokens.append(token)

    def fail(self, error: Exception) -> None:
        """The reader raises this once it has taken what there is."""
        self._error = error
        self.notify()

    async def take(self) -> list[Token]:
        """All there are, at least one."""
        while not self._tokens:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        tokens, self._tokens = self._tokens, []
        return tokens

    def notify(self) -> None:
        """Wake the reader, if it waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Telling:
    """When readers learn of tokens. Waking one costs more than a token's share of a step on a fast
    device: with many of them, several tokens are told at a time. Used in one event loop."""

    def __init__(self) -> None:
        self._held: dict[Mailbox, None] = {}  # with tokens that nobody was told of,
        self._timer: asyncio.TimerHandle | None = None  # until this
        self._told = 0.0  # when that was done last

    def put(self, box: Mailbox, token: Token) -> None:
        """Keep a token for its reader, who is told at once of the first and the last."""
        box.put(token)
        if token.index == 0 or token.finish is not None:
            box.notify()
        else:
            self._held[box] = None

    def tell(self, n: int) -> None:
        """Wake the others, or later. n: tokens of the step that these are of."""
        if not self._held or self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        wait = self._told + min(HOLD_MOST, HOLD_EACH * n) - loop.time()
        if wait <= 0 or n < HOLD_FROM:
            self._tell()
        else:
            self._timer = loop.call_later(wait, self._tell)

    def forget(self) -> None:
        """Tell nobody: all are told something else."""
        self._held.clear()

    def _tell(self) -> None:
        held, self._held, self._timer = self._held, {}, None
        self._told = asyncio.get_running_loop().time()
        for box in held:
            box.notify()


class AsyncEngine:
    """Steps an engine while it has work. Everything but the steps is called in the event loop.

    most: requests in work at once, those that wait for room included; beyond them `generate` raises
    EngineBusyError. What a slow reader has not taken is kept, and bounded by its request: the
    context is. warms: plans that requests will need are made while nobody asks (`warming`).
    """

    def __init__(self, engine: Engine, most: int = 1024, warms: bool = False) -> None:
        self.engine = engine
        self.most = most
        self._warming = engine.warming() if warms else None
        self._rests = False  # somebody was there a moment ago
        self._boxes: dict[RequestId, Mailbox] = {}
        self._wake = threading.Event()
        self._closing = False
        self._failed: Exception | None = None
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._telling = Telling()

    async def __aenter__(self) -> AsyncEngine:
        self._loop = asyncio.get_running_loop()
        self._thread = Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    @property
    def failed(self) -> Exception | None:
        """Why requests are no longer accepted: a step raised, or the engine was closed."""
        return self._failed

    async def close(self) -> None:
        """End the thread and the run it is at. Requests in work raise EngineClosedError."""
        self._closing = True
        self.engine.give_up()
        self._wake.set()
        while self._thread is not None and self._thread.is_alive():
            await asyncio.sleep(CLOSING)  # no thread for it, which might not be had
        self._fail(EngineClosedError("the engine was closed"))

    async def generate(self, request: Request | EmbedRequest) -> AsyncIterator[Token]:
        """A request's tokens as they are made. Leaving early, or cancelling the task, cancels the
        request. Raises what `Engine.add` does, EngineBusyError and EngineClosedError."""
        batches = self.batches(request)
        try:
            async for tokens in batches:
                for token in tokens:
                    yield token
        finally:
            await batches.aclose()

    async def batches(self, request: Request | EmbedRequest) -> AsyncGenerator[list[Token], None]:
        """The same with all tokens that have come since the reader looked, at least one: a reader
        behind the engine catches up in one go."""
        if self._failed is not None:
            raise self._failed
        if self._thread is None:
            raise EngineClosedError("the engine was not entered: use `async with`")
        if len(self._boxes) >= self.most:
            raise EngineBusyError(f"{self.most} requests are in work")
        # No await in between: the box is there before a step's tokens can be handed out.
        id = self.engine.add(request)
        box = self._boxes[id] = Mailbox()
        self._wake.set()
        finished = False
        try:
            while not finished:
                tokens = await box.take()
                finished = tokens[-1].finish is not None
                yield tokens
        finally:
            del self._boxes[id]
            if not finished:
                self.engine.cancel(id)
                self._wake.set()

    # -- the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        assert self._loop is not None
        while not self._closing:
            try:
                tokens = self._step()
            except Exception as e:
                closed = EngineClosedError(f"a step failed: {e}")
                closed.__cause__ = e
                self._loop.call_soon_threadsafe(self._fail, closed)
                return
            if tokens:
                self._loop.call_soon_threadsafe(self._hand_out, tokens)

    def _step(self) -> list[Token]:
        """A step of the engine; where it has none to make, one towards plans, or a wait."""
        if self.engine.has_work:
            self._rests = True
            return self.engine.step()
        if self._warming is None or self._rests:
            self._rests = self._wake.wait(None if self._warming is None else REST)
            self._wake.clear()
        elif not self._warming.step():
            self._warming = None
        return []

    def _hand_out(self, tokens: list[Token]) -> None:
        for token in tokens:
            box = self._boxes.get(token.request)
            if box is None:  # its reader has left
                continue
            self._telling.put(box, token)
        self._telling.tell(len(tokens))

    def _fail(self, error: Exception) -> None:
        self._failed = self._failed or error
        self._telling.forget()
        for box in self._boxes.values():
            box.fail(error)
