"""Arguments of calls to JSON while they are written: one reader for each way templates have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from .formats import Tags, ToolFormat

# What is known of an argument's value: text as it is, JSON, or JSON if it is and text if not.
Kind = Literal["text", "json", "either"]
Kinds = Mapping[str, Kind]
QUOTE = '<|"|>'  # Gemma's


class Read(NamedTuple):
    """json: more of the arguments. rest: what was not used. ended: whether they are complete."""

    json: str
    rest: str
    ended: bool


class Reader(Protocol):
    """Of one call's arguments."""

    def feed(self, text: str) -> Read:
        """More of them; what `rest` gives back has to come again."""


def reader(form: ToolFormat, kinds: Kinds) -> Reader:
    """Of a call in a form. kinds: of arguments by name, where they are in tags."""
    if isinstance(form.arguments, Tags):
        return TagReader(form.arguments, kinds)
    return GemmaReader() if form.arguments == "gemma" else JsonReader()


class JsonReader:
    """A JSON object as it stands."""

    def __init__(self) -> None:
        self._depth = 0
        self._string = self._escaped = False

    def feed(self, text: str) -> Read:
        for i, char in enumerate(text):
            if self._string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._string = False
            elif char == '"':
                self._string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if not self._depth:
                    return Read(text[: i + 1], text[i + 1 :], True)
        return Read(text, "", False)


class TagReader:
    """`open KEY mid VALUE close` one after the other."""

    def __init__(self, tags: Tags, kinds: Kinds) -> None:
        self._tags, self._kinds = tags, kinds
        self._kind: Kind | None = None  # of the value that is being read
        self._n = 0

    def feed(self, text: str) -> Read:
        out = ""
        while True:
            if self._kind is None:
                if not text or (self._tags.open.startswith(text) and text != self._tags.open):
                    return Read(out, text, False)
                if not text.startswith(self._tags.open):
                    return Read(out + ("}" if self._n else "{}"), text, True)
                key, mid, rest = text[len(self._tags.open) :].partition(self._tags.mid)
                if not mid:
                    return Read(out, text, False)
                self._kind, text = self._kinds.get(key, "either"), rest
                out += ("{" if not self._n else ", ") + json.dumps(key, ensure_ascii=False) + ": "
                out += '"' if self._kind == "text" else ""
                self._n += 1
            value, close, rest = text.partition(self._tags.close)
            if not close:
                keep = overlap(text, self._tags.close) if self._kind != "either" else len(text)
                value, text = text[: len(text) - keep], text[len(text) - keep :]
                return Read(out + self._written(value), text, False)
            out += self._whole(value) if self._kind == "either" else self._written(value)
            out += '"' if self._kind == "text" else ""
            self._kind, text = None, rest

    def _written(self, value: str) -> str:
        return quoted(value)[1:-1] if self._kind == "text" else value

    @staticmethod
    def _whole(value: str) -> str:
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            return quoted(value)
        return value


_BARE = re.compile(r"[\w.\-+]+")


class GemmaReader:
    """`{key:<|"|>text<|"|>,other:1}`."""

    def __init__(self) -> None:
        self._depth = 0
        self._string = False

    def feed(self, text: str) -> Read:
        out = ""
        while text:
            if self._string:
                value, close, rest = text.partition(QUOTE)
                if not close:
                    keep = overlap(text, QUOTE)
                    value, text = text[: len(text) - keep], text[len(text) - keep :]
                    return Read(out + quoted(value)[1:-1], text, False)
                out, text, self._string = out + quoted(value)[1:-1] + '"', rest, False
            elif text.startswith(QUOTE):
                out, text, self._string = out + '"', text[len(QUOTE) :], True
            elif QUOTE.startswith(text):
                return Read(out, text, False)
            elif (bare := _BARE.match(text)) is not None:
                if bare.end() == len(text):
                    return Read(out, text, False)
                word, text = bare[0], text[bare.end() :]
                out += quoted(word) if text[0] == ":" else word
            else:
                self._depth += (text[0] in "{[") - (text[0] in "}]")
                out, text = out + text[0], text[1:]
                if not self._depth:
                    return Read(out, text, True)
        return Read(out, text, False)


def quoted(text: str) -> str:
    """A text as JSON."""
    return json.dumps(text, ensure_ascii=False)


def overlap(text: str, mark: str) -> int:
    """How much of the end of a text may be the beginning of a mark."""
    for n in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-n:]):
            return n
    return 0
