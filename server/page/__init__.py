"""The page at `/`: one document, put together from this directory's files when it is asked for."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from gguflow.server.exchange import Exchange

_HERE = Path(__file__).parent
# In the order they run: each adds to what those before it define.
SCRIPTS = ("dom.js", "api.js", "store.js", "markdown.js", "settings.js", "chat.js", "charts.js",
           "live.js", "windows.js", "main.js")  # fmt: skip


async def page(exchange: Exchange) -> None:
    """The document."""
    data, policy = document()
    await exchange.document(data, "text/html; charset=utf-8", headers={
        "content-security-policy": policy, "x-frame-options": "DENY", "cache-control": "no-cache",
    })  # fmt: skip


@cache
def document() -> tuple[bytes, str]:
    """The page, and the policy under which it may run: its own script and style by their hashes,
    requests to its own server, nothing else. No text can become markup (trusted types)."""
    style = _read("page.css")
    body = "\n".join(_read(name) for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{body}}})();'
    html = _read("page.html")
    for name, text in (("style", style), ("script", script)):
        slot = f"/*{name}*/"
        assert html.count(slot) == 1, f"page.html has no slot {slot}"
        html = html.replace(slot, text)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    )
    return html.encode(), policy


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
