"""One HTTP request and its answer: the body within its bounds, a deadline, a client that may leave.

An endpoint is a coroutine over an `Exchange`, which reads the body and writes either one JSON
document or a stream of server-sent events. When the client hangs up its task is cancelled, and with
it everything the request has in work.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.types import Message, Receive, Scope, Send

from .errors import ApiError, ClientGone
from .events import event

if TYPE_CHECKING:
    from .service import Service

DISCARD = 16  # times the largest body that is read, unkept, to deliver a 413
DONE = b"data: [DONE]\n\n"
_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx passes events on as they come
]
log = logging.getLogger("gguflow.server")

Endpoint = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """A request being answered. deadline: on the event loop's clock."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self.service, self.scope = service, scope
        self._receive, self._send = receive, send
        # Behind the answer's head nobody between here and the socket has anything to add.
        self._events: Send = scope.get("gguflow.send", send)
        self.headers: dict[str, str] = {
            k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]
        }
        self.began = time.time()
        self.deadline = asyncio.get_running_loop().time() + service.config.timeout
        self.warnings: list[str] = []  # fields that had no effect
        self.streams = False  # whether an event stream has begun
        # An error as an event of the stream: an endpoint whose events have another form says which.
        self.error_event: Callable[[ApiError], bytes] = lambda error: event(error.body())
        self.status = 0
        self._over = False
        self._gone = False

    @property
    def key(self) -> str:
        """Who asks: the API key, else the address. Turns are taken over these."""
        return str(self.scope.get("gguflow.key", ""))

    @property
    def id(self) -> str:
        """The request's id, which the access log and the answer's headers have too."""
        return str(self.scope["gguflow.id"])

    # -- in --------------------------------------------------------------------------------------

    async def body(self) -> bytes:
        """The whole body. Raises ApiError 413, 415 and 408, and ClientGone."""
        kind = self.headers.get("content-type", "application/json").partition(";")[0].strip()
        if kind.lower() != "application/json":
            raise ApiError(415, f"content-type {kind[:80]!r}: expected application/json")
        most = self.service.config.max_body
        parts, n = [], 0
        try:
            async with asyncio.timeout(self.service.config.body_timeout):
                more = True
                while more:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    part, more = message.get("body", b""), message.get("more_body", False)
                    n += len(part)
                    if n <= most:
                        parts.append(part)
                    elif n > DISCARD * most:
                        break
        except TimeoutError:
            raise ApiError(
                408, "the body did not come in time", headers={"connection": "close"}
            ) from None
        if n > most:
            close = {"connection": "close"}
            raise ApiError(413, f"the body is larger than {most} bytes", headers=close)
        return b"".join(parts)

    # -- out -------------------------------------------------------------------------------------

    async def json(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer with one document."""
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        await self.document(text.encode("utf-8", "replace"), "application/json", status, headers)

    async def document(
        self,
        data: bytes,
        kind: str,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer with bytes of a kind."""
        fields = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(data))]
        fields += [(k.encode("latin-1"), v.encode("latin-1")) for k, v in (headers or {}).items()]
        await self._start(status, fields)
        self._over = True
        await self._send({"type": "http.response.body", "body": data})

    async def begin_events(self) -> None:
        """Answer with a stream of events."""
        self.streams = True
        await self._start(200, [*_EVENTS])

    async def event(self, data: bytes) -> None:
        """Send events, each `data: ...` and an empty line. Waits for a reader that is behind."""
        await self._events({"type": "http.response.body", "body": data, "more_body": True})

    async def end_events(self) -> None:
        """The stream is complete."""
        self._over = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        from .schema.base import warning

        if self.warnings:
            headers.append((b"warning", warning(self.warnings).encode("latin-1")))
        self.status = status
        start: Message = {"type": "http.response.start", "status": status, "headers": headers}
        await self._send(start)

    async def fail(self, error: ApiError) -> None:
        """Answer with an error, within the stream where one has begun."""
        if self._over:
            return
        if not self.streams:
            await self.json(error.body(), error.status, error.headers)
            return
        await self.event(self.error_event(error))
        await self.end_events()

    # -- the whole -------------------------------------------------------------------------------

    async def run(self, endpoint: Endpoint) -> None:
        """Answer the request. What goes wrong becomes an error of the API."""
        try:
            async with asyncio.timeout_at(self.deadline):
                await endpoint(self)
        except ApiError as error:
            await self.fail(error)
        except ClientGone:
            self.status = self.status or 499
        except TimeoutError:
            seconds = f"{self.service.config.timeout:g}"
            await self.fail(ApiError(408, f"the request took longer than {seconds} s"))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._gone or task is None:
                raise
            task.uncancel()
            self.status = 499  # nginx's number for a client that closed the request
        except Exception:
            log.exception("request %s failed", self.id)
            text = "an internal error; the log has it"
            await self.fail(ApiError(500, text, kind="server_error"))

    def watch(self) -> Watch:
        """`async with`: the client's leaving cancels what is inside. The body has been read."""
        return Watch(self)

    async def _until_gone(self, task: asyncio.Task[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._over:
            self._gone = True
            task.cancel()


class Watch:
    """See `Exchange.watch`."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._watcher = asyncio.create_task(self._exchange._until_gone(task))

    async def __aexit__(self, *_: Any) -> None:
        assert self._watcher is not None
        self._watcher.cancel()
