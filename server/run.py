"""Runs the application: sockets, signals, the way down."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn

from .app import build_app
from .config import SWITCH, ServerConfig
from .http import protocol
from .service import Service

log = logging.getLogger("gguflow.server")


def listen(config: ServerConfig) -> socket.socket:
    """The socket, before models are loaded: a port that is taken shows at once. Raises OSError."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # On Windows that would let two servers have one port; there a port is free at once anyway.
        if sys.platform != "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((config.host, config.port))
    except OSError:
        sock.close()
        raise
    return sock


class Server(uvicorn.Server):
    """uvicorn's, which says when it listens. failed: told why it ends by itself."""

    def __init__(
        self,
        config: uvicorn.Config,
        ready: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(config)
        self._ready, self._failed = ready, failed

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        await super().startup(sockets)
        if self.started and not self.should_exit:
            self._ready()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What nobody caught. uvloop that has no memory to accept a connection accepts neither it
        nor any after it: they would wait for ever, so the server ends."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, MemoryError) and not {"task", "future", "handle"} & context.keys():
            self._failed(error)
            self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets those in work finish; the next one cancels them."""
        if not self.should_exit:
            super().handle_exit(sig, frame)
            return
        for task in [*self.server_state.tasks]:
            task.get_loop().call_soon_threadsafe(task.cancel)


def make_server(service: Service, ready: Callable[[], None]) -> Server:
    """The application in uvicorn, with this project's bounds. ready: called when the default model
    is loaded and the server listens."""
    config = service.config
    server = Server(
        uvicorn.Config(
            build_app(service),
            http=protocol(config.header_timeout, config.timeout),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=config.max_connections or None,
            timeout_keep_alive=max(5, int(config.header_timeout)),
            timeout_graceful_shutdown=max(1, int(config.drain)),
        ),
        ready,
        lambda error: setattr(service, "failure", error),
    )
    service.ending = lambda: server.should_exit
    return server


def serve(service: Service, sock: socket.socket, ready: Callable[[], None]) -> bool:
    """Serve until SIGTERM or SIGINT, then answer what is in work. False if it did not start; raises
    what kept the default model from being loaded."""
    _more_files()
    sys.setswitchinterval(SWITCH)
    # uvicorn raises the signal again when it is through: that is the end, not an error.
    quiet: Callable[..., None] = lambda *_: None  # noqa: E731
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, quiet)
    server = make_server(service, ready)
    with suppress(SystemExit):  # uvicorn's way to say that it did not start
        server.run(sockets=[sock])
    if service.failure is not None:
        raise service.failure
    return server.started


def quiet_start(record: logging.LogRecord) -> bool:
    """A filter for uvicorn's log: why the server did not start is told by who started it."""
    text = record.getMessage()
    return not text.startswith(("Traceback", "Application startup failed"))


def _more_files() -> None:
    """As many open files as may be: a connection is one. Windows has no such limit."""
    if sys.platform != "win32":
        import resource

        with suppress(ValueError, OSError):
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
