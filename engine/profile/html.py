"""One self-contained HTML page: styles, scripts and data inlined, nothing fetched."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any, TextIO

from gguflow.engine.harmless import many_lines

from .page_data import page_data
from .record import Recording

_PAGE = Path(__file__).parent / "page"
# In the order they must run: each script adds to what the ones before it define.
_SCRIPTS = ("dom.js", "format.js", "roofline.js", "table.js", "steps.js", "timeline.js", "main.js")


def write_html(recording: Recording, out: TextIO) -> None:
    """Write the page."""
    script = "\n".join(_read(name) for name in _SCRIPTS)
    model = recording.header.model
    parts = {
        "title": html.escape(
            f"{many_lines(model)} · gguflow profile" if model else "gguflow profile"
        ),
        "style": _read("page.css"),
        "data": embed_json(page_data(recording)),
        "script": f'(() => {{\n"use strict";\n{script}}})();',
    }
    page = _read("page.html")
    for name, text in parts.items():
        before, slot, page = page.partition(f"<!-- {name} -->")
        if not slot:
            raise AssertionError(f"page.html has no slot {name!r} in its place")
        out.write(before + text)
    out.write(page)


def _read(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


def embed_json(data: Any) -> str:
    """JSON that is safe inside a script element: no name in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text
