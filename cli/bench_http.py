"""A small HTTP client for load: a request, and its streamed answer with the time of each piece.

By itself, so that it costs next to nothing beside the server that it measures on the same machine.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from gguflow.engine.dataclass import dataclass, field


class HttpError(Exception):
    """An answer that is no HTTP, or a connection that broke."""


@dataclass
class Outcome:
    """What came of a request. Times are seconds after it was sent; pieces: of each piece of text.

    n_prompt, n_generated: as the server counts them, 0 where it does not say. error: of a stream.
    """

    status: int = 0
    pieces: list[float] = field(default_factory=list)
    end: float = 0.0
    n_prompt: int = 0
    n_generated: int = 0
    text: str = ""
    texts: dict[int, str] = field(default_factory=dict)  # of each answer, and why it ended
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 200 and not self.error and bool(self.pieces)


class Endpoint:
    """An OpenAI API. url: with or without /v1. Raises ValueError for what is none."""

    def __init__(self, url: str, key: str = "") -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url}: expected http://HOST:PORT")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.host = parts.hostname
        self.port = parts.port or (443 if self._tls else 80)
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._key = key

    async def get(self, path: str) -> Any:
        """A JSON document. Raises HttpError, OSError."""
        status, body = 0, b""
        async for found, part in self._exchange("GET", path, b""):
            status, body = found, body + part
        if status != 200:
            raise HttpError(f"{path}: status {status}")
        try:
            return json.loads(body)
        except ValueError:
            raise HttpError(f"{path}: no JSON") from None

    async def complete(self, body: dict[str, Any]) -> Outcome:
        """A streamed completion."""
        out, held = Outcome(), b""
        began = time.perf_counter()
        data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
        try:
            async for status, part in self._exchange("POST", "/v1/completions", data.encode()):
                now = time.perf_counter() - began
                out.status = status
                held += part
                *events, held = held.split(b"\n\n") if status == 200 else [held]
                for event in events:
                    _read(event, out, now)
        except (HttpError, OSError, ValueError) as error:
            out.error = str(error) or type(error).__name__
        out.end = time.perf_counter() - began
        return out

    async def _exchange(
        self, method: str, path: str, body: bytes
    ) -> AsyncIterator[tuple[int, bytes]]:
        """(status, part of the body), at least one."""
        reader, writer = await asyncio.open_connection(
            self.host, self.port, ssl=self._tls, limit=1 << 20
        )
        try:
            lines = [f"{method} {self._base}{path} HTTP/1.1", f"host: {self.host}:{self.port}",
                     "connection: close", "content-type: application/json",
                     f"content-length: {len(body)}"]  # fmt: skip
            if self._key:
                lines.append(f"authorization: Bearer {self._key}")
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                raise HttpError("no HTTP answer") from None
            status = int(head[0].split()[1])
            fields = {
                k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])
            }
            yield status, b""
            if fields.get("transfer-encoding", "").lower() == "chunked":
                async for part in _chunks(reader):
                    yield status, part
            else:
                while part := await reader.read(65536):
                    yield status, part
        finally:
            writer.close()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        try:
            size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
            if not size:
                return
            data = await reader.readexactly(size + 2)
        except (asyncio.IncompleteReadError, ValueError):
            raise HttpError("the answer broke off") from None
        yield data[:-2]


def _read(event: bytes, out: Outcome, now: float) -> None:
    """One server-sent event."""
    data = event.removeprefix(b"data:").strip()
    if not data or data == b"[DONE]" or not event.startswith(b"data:"):
        return
    value = json.loads(data)
    if "error" in value:
        out.error = str(value["error"])[:200]
        return
    for choice in value.get("choices", ()):
        if choice.get("text"):
            out.pieces.append(now)
            out.text += choice["text"]
        n = choice.get("index", 0)
        out.texts[n] = out.texts.get(n, "") + (choice.get("text") or "")
        if choice.get("finish_reason"):
            out.texts[n] += f"\0{choice['finish_reason']}"
    usage = value.get("usage")
    if usage:
        out.n_prompt, out.n_generated = usage["prompt_tokens"], usage["completion_tokens"]
