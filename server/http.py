"""The connection: uvicorn's protocol with bounds on what comes before a request is one, and on the
time an answer waits for its reader.

uvicorn waits for ever for a request's head and keeps however much of it comes. It waits for ever,
too, for a reader that takes nothing: closing a transport leaves it open until all is sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .errors import ApiError, unavailable

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

log = logging.getLogger("gguflow.server")
MAX_HEAD = 64 << 10  # bytes of a request line and its headers


class BoundedProtocol(HttpToolsProtocol):
    """header_timeout: seconds in which a request's head has to be complete. send_timeout: seconds
    in which a reader that is behind has to catch up."""

    header_timeout = 10.0
    send_timeout = 600.0
    _timer: asyncio.TimerHandle | None = None
    _behind: asyncio.TimerHandle | None = None
    _answered: RequestResponseCycle | None = None  # `cycle` may be one that waits for it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        try:
            super().connection_made(transport)
            self._in_head, self._in_message, self._n_head = True, False, 0
            self._arm()
        except BaseException:  # the loop would keep it and read nothing that comes by it
            transport.abort()
            raise

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._caught_up()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_head:
            self._n_head += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        # What came with the end of a head was body: only an unfinished head is counted.
        if self._in_head and self._n_head > MAX_HEAD:
            self._refuse(431)
        # Empty lines between requests begin none, and have ended the time that uvicorn waits.
        between = self.cycle is not None and self.cycle.response_complete and not self._in_message
        if between and self._timer is None:
            self._arm()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._in_message, self._n_head, self._n_fields = True, True, 0, 0
        if self._timer is None:
            self._arm()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if self._in_head:  # what follows a body in pieces is no header of its request
            super().on_header(name, value)

    def _count(self, n: int) -> None:
        """A head that comes in one piece is over before `data_received` has looked at its size."""
        self._n_fields += n
        if self._n_fields > MAX_HEAD:
            raise ValueError("the head is too large")  # which the parser makes a 400 of

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_message = False
        super().on_message_complete()

    # -- a reader that is behind -----------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._caught_up()
        self._falls_behind()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._caught_up()
        self._look_at_rest()

    def on_response_complete(self) -> None:
        self._look_at_rest()
        super().on_response_complete()

    def _look_at_rest(self) -> None:
        """The end of an answer may be too little to stop writing for, and still never be taken."""
        if not self.flow.write_paused and self._is_rest():
            self._caught_up()
            self._falls_behind()

    def _is_rest(self) -> bool:
        """Whether what is unsent ends an answer, and no other one has begun behind it."""
        over = self._answered is None or self._answered.response_complete
        return over and self.transport.get_write_buffer_size() > 0

    def _falls_behind(self) -> None:
        self._behind = self.loop.call_later(self.send_timeout, self._abandon)

    def _caught_up(self) -> None:
        if self._behind is not None:
            self._behind.cancel()
            self._behind = None

    def _abandon(self) -> None:
        """Closes the connection with what was not taken, which cancels the request in work."""
        self._behind = None
        if not self.flow.write_paused and not self._is_rest():
            return
        request = None if self._answered is None else self._answered.scope.get("gguflow.id")
        log.warning(
            "request %s: its reader was behind for %g s, its connection is closed; %d bytes unsent",
            request, self.send_timeout, self.transport.get_write_buffer_size(),
        )  # fmt: skip
        self.transport.abort()

    # --------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, answered as every other error. The parser says the same of a head for
        which there was no memory, which is not its sender's fault."""
        self._disarm()
        error, reason = ApiError(400, msg, code="bad_http"), sys.exception()
        if reason is not None and isinstance(reason.__context__, MemoryError):
            error = unavailable("there was no memory for the request's head")
        self._write(error)

    def _arm(self) -> None:
        self._timer = self.loop.call_later(self.header_timeout, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self._refuse(408)

    def _refuse(self, status: int) -> None:
        self._disarm()
        if self.cycle is None or self.cycle.response_complete:
            message = "the request's head is too large" if status == 431 else "too slow"
            self._write(ApiError(status, message))
        self.transport.close()

    def _write(self, error: ApiError) -> None:
        body = json.dumps(error.body()).encode()
        head = b"content-type: application/json\r\nconnection: close\r\n"
        head += b"content-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()


def protocol(header_timeout: float, send_timeout: float) -> type[asyncio.Protocol]:
    """The protocol with its timeouts."""
    bounds = {"header_timeout": header_timeout, "send_timeout": send_timeout}
    return type("Protocol", (BoundedProtocol,), bounds)
