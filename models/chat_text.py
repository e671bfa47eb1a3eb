"""Text of an answer by kind, without the white space that formats put around their sections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from gguflow.engine.dataclass import dataclass

Kind = Literal["reasoning", "content"]


@dataclass(frozen=True)
class Text:
    """More of the thinking or of the answer."""

    kind: Kind
    text: str


@dataclass(frozen=True)
class Markup:
    """What stands around texts: marks, headers, white space. calls: calls as they were written.

    With it the parts of an answer are all of its text, in order.
    """

    text: str
    calls: bool = False


class Held:
    """Passes text on, and white space at both ends of sections as markup: what may be the end is
    held back.

    The end of an answer that is content alone stays as it is.
    """

    def __init__(self) -> None:
        self._kind: Kind | None = None
        self._space = ""
        self._sections = 0

    def push(self, kind: Kind, text: str) -> list[Text | Markup]:
        if not text:
            return []
        around = ""
        if kind != self._kind:
            around, self._space = self._space, ""
            if self._kind is not None or kind == "reasoning" or self._sections:
                said = text.lstrip()
                around, text = around + text[: len(text) - len(said)], said
        parts = markup(around)
        if not text:
            return parts
        self._kind = kind
        body = text.rstrip()
        if not body:
            self._space += text
            return parts
        said, self._space = self._space + body, text[len(body) :]
        return [*parts, Text(kind, said)]

    def end_of_section(self, marker: str = "") -> list[Text | Markup]:
        """A marker: white space on both sides of it is markup as it is."""
        around, self._space = self._space + marker, ""
        self._sections += 1
        self._kind = None
        return markup(around)

    def finish(self) -> list[Text | Markup]:
        """The white space at the end of content."""
        space, self._space = self._space, ""
        return [Text("content", space)] if space and self._kind == "content" else markup(space)


def markup(text: str, calls: bool = False) -> list[Text | Markup]:
    """As parts: none for no text."""
    return [Markup(text, calls)] if text else []


def longest_start(text: str, markers: Iterable[str]) -> int:
    """How much of the end of `text` is the beginning of a marker."""
    return max((n for m in markers for n in range(1, min(len(m), len(text) + 1))
                if text.endswith(m[:n])), default=0)  # fmt: skip
