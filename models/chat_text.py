"""Text of an answer by kind, without the white space that formats put around their sections."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["reasoning", "content"]


@dataclass(frozen=True)
class Text:
    """More of the thinking or of the answer."""

    kind: Kind
    text: str


class Held:
    """Passes text on, less white space at both ends of sections: what may be the end is held back.

    The end of an answer that is content alone stays as it is.
    """

    def __init__(self) -> None:
        self._kind: Kind | None = None
        self._space = ""
        self._sections = 0

    def push(self, kind: Kind, text: str) -> list[Text]:
        if not text:
            return []
        if kind != self._kind:
            self._space = ""
        begins = kind != self._kind
        if begins and (self._kind is not None or kind == "reasoning" or self._sections):
            text = text.lstrip()
        if not text:
            return []
        self._kind = kind
        body = text.rstrip()
        if not body:
            self._space += text
            return []
        said, self._space = self._space + body, text[len(body) :]
        return [Text(kind, said)]

    def end_of_section(self) -> None:
        """A marker: white space on both sides of it goes."""
        self._space = ""
        self._sections += 1
        self._kind = None

    def finish(self) -> list[Text]:
        """The white space at the end of content."""
        space, self._space = self._space, ""
        return [Text("content", space)] if space and self._kind == "content" else []


def longest_start(text: str, markers: Iterable[str]) -> int:
    """How much of the end of `text` is the beginning of a marker."""
    return max((n for m in markers for n in range(1, min(len(m), len(text) + 1))
                if text.endswith(m[:n])), default=0)  # fmt: skip
