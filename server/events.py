"""Chunks of a stream as bytes, made fast: everything but the text stays the same in all of them."""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as quote
from typing import Any


def event(value: Any) -> bytes:
    """One server-sent event."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return b"data: " + text.encode() + b"\n\n"


def typed_event(kind: str, number: int, fields: dict[str, Any]) -> bytes:
    """One event of /v1/responses, which says its type and its place in the stream."""
    value = {"type": kind, "sequence_number": number, **fields}
    return f"event: {kind}\n".encode() + event(value)


class ChunkWriter:
    """Chunks of one answer. kind: their `object`. field: of a choice, that has its text."""

    def __init__(self, id: str, kind: str, created: int, model: str, usage: bool) -> None:
        self._head = {"id": id, "object": kind, "created": created, "model": model}
        self._usage = usage
        start = json.dumps(self._head, separators=(",", ":"))[:-1]
        tail = ',"usage":null}' if usage else "}"
        self._before = f'data: {start},"choices":[{{"index":'
        self._after = tail + "\n\n"
        self._chat = kind.startswith("chat")

    def text(self, index: int, text: str) -> bytes:
        """A piece of text and nothing else."""
        if self._chat:
            middle = f'{index},"delta":{{"content":{quote(text)}}},"logprobs":null'
        else:
            middle = f'{index},"text":{quote(text)},"logprobs":null'
        return f'{self._before}{middle},"finish_reason":null}}]{self._after}'.encode()

    def choice(self, choice: dict[str, Any]) -> bytes:
        """Anything of one choice."""
        return event(
            {**self._head, "choices": [choice], **({"usage": None} if self._usage else {})}
        )

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The last chunk, with the tokens counted."""
        return event({**self._head, "choices": [], "usage": usage})
