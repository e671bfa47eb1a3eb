"""Around every request: its id, who asks, headers of every answer, the access log."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
import sys
import time
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .config import ServerConfig
from .errors import ApiError
from .metrics import Metrics

OPEN_PATHS = ("/health",)  # without a key
_SECURITY = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
# A header each: browsers do not look for Basic behind a comma.
_ASK = [
    (b"www-authenticate", b'Basic realm="gguflow", charset="UTF-8"'),
    (b"www-authenticate", b'Bearer realm="gguflow"'),
]
_NAMES = re.compile(rb"[A-Za-z0-9_, -]{1,1024}")
_LOCAL = ("localhost", "127.0.0.1", "::1")


def read_keys(text: str) -> frozenset[str]:
    """Keys of a file: one a line, without empty lines and those that begin with #."""
    lines = (line.strip() for line in text.splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))


class Guard:
    """An ASGI middleware; see the module."""

    def __init__(self, app: ASGIApp, config: ServerConfig, metrics: Metrics) -> None:
        self.app, self.config, self.metrics = app, config, metrics
        self._keys = [k.encode() for k in config.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {k.lower(): v for k, v in scope["headers"]}
        scope["gguflow.id"] = uuid4().hex
        began, status = time.perf_counter(), 0

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *self._headers(scope, headers)]
                if status == 401:
                    message["headers"] += _ASK
            await send(message)

        scope["gguflow.send"] = send
        try:
            await self._admit(scope, headers)
            if scope["method"] == "OPTIONS" and self._origin(headers):
                await Response(status_code=204)(scope, receive, marked)  # a browser asks first
            else:
                await self.app(scope, receive, marked)
        except ApiError as error:
            await error.response()(scope, receive, marked)
        finally:
            seconds = time.perf_counter() - began
            status = scope.get("gguflow.status") or status
            self.metrics.http(scope, status)
            if self.config.access_log:
                self._log(scope, status, seconds)

    async def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raises ApiError for requests that go no further."""
        client = scope.get("client")
        scope["gguflow.key"] = client[0] if client else ""
        host = headers.get(b"host", b"").decode("latin-1")
        if self.config.hosts and _name(host) not in self.config.hosts:
            raise ApiError(421, f"this server is not called {host[:80]!r}", code="wrong_host")
        if (
            _from_elsewhere(headers, host)
            and scope["method"] not in ("GET", "HEAD", "OPTIONS")
            and headers.get(b"origin", b"").decode("latin-1") not in self.config.origins
        ):
            raise ApiError(403, "pages of other sites may not call this server", code="cross_site")
        if scope["method"] == "OPTIONS" and self._origin(headers):
            return
        if self._keys and scope["path"] not in OPEN_PATHS:
            key = _credential(headers.get(b"authorization", b""))
            found = [known for known in self._keys if hmac.compare_digest(known, key)]
            if not found:
                message = "no valid API key in the Authorization header"
                raise ApiError(401, message, code="invalid_api_key")
            scope["gguflow.key"] = f"key{sorted(self._keys).index(found[0])}"

    def _origin(self, headers: dict[bytes, bytes]) -> str | None:
        origin = headers.get(b"origin", b"").decode("latin-1")
        return origin if origin and origin in self.config.origins else None

    @staticmethod
    def _asked(headers: dict[bytes, bytes]) -> bytes:
        """The headers that a page of an allowed origin may send: those it says it will."""
        asked = headers.get(b"access-control-request-headers", b"")
        return asked if _NAMES.fullmatch(asked) else b"authorization, content-type"

    def _headers(self, scope: Scope, headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        out = [(b"x-request-id", scope["gguflow.id"].encode()), *_SECURITY]
        origin = self._origin(headers)
        if origin:
            out += [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-allow-headers", self._asked(headers)),
                (b"access-control-max-age", b"600"),
                (b"access-control-allow-methods", b"GET, POST"),
                (b"access-control-expose-headers", b"warning, x-request-id, retry-after"),
                (b"vary", b"origin"),
            ]
        return out

    def _log(self, scope: Scope, status: int, seconds: float) -> None:
        client = scope.get("client")
        line: dict[str, Any] = {
            "time": round(time.time(), 3), "id": scope["gguflow.id"],
            "client": client[0] if client else None, "key": scope.get("gguflow.key"),
            "method": scope["method"], "path": scope["path"][:200], "status": status,
            "seconds": round(seconds, 4), **scope.get("gguflow.facts", {}),
        }  # fmt: skip
        print(json.dumps(line), file=sys.stderr)


def _from_elsewhere(headers: dict[bytes, bytes], host: str) -> bool:
    """Whether a page of another site asks. Browsers say so, but not to plain http of another
    machine; there they say where the page is from."""
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site in (b"cross-site", b"same-site")
    origin = headers.get(b"origin")
    return origin is not None and origin.decode("latin-1").partition("//")[2] != host


def _credential(value: bytes) -> bytes:
    """The key of `Bearer KEY`, or of `Basic` with it as the password, which browsers send."""
    kind, _, rest = value.partition(b" ")
    rest = rest.strip()
    if kind.lower() == b"bearer":
        return rest
    if kind.lower() == b"basic":
        try:
            return base64.b64decode(rest, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""


def _name(host: str) -> str:
    """A host without its port."""
    try:
        return (urlsplit("//" + host).hostname or "").lower()
    except ValueError:
        return ""


def local_hosts(host: str) -> tuple[str, ...]:
    """What a server that listens on this machine alone is called. A page elsewhere whose name was
    pointed here must not reach it with the browser's help."""
    return _LOCAL if host in _LOCAL else ()
