"""Reads calls out of an answer as its text comes."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from .formats import ToolFormat


@dataclass
class CallDelta:
    """What is new of a call: its id and name once, when they are known, then its arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class CallParser:
    """Text in, text and parts of calls out. begins: the answer is calls from the start on."""

    def __init__(self, form: ToolFormat) -> None:
        self._form = form
        self._state = "text"
        self._held = ""
        self._depth = 0
        self._string = self._escaped = False
        self.n_calls = 0

    @property
    def complete(self) -> bool:
        """Whether an answer that ends here ends with whole calls."""
        return self.n_calls > 0 and self._state in ("after", "end")

    def push(self, text: str) -> tuple[str, list[CallDelta]]:
        """The text and the parts of calls that this makes known."""
        self._held += text
        shown, deltas = "", list[CallDelta]()
        before = None
        while self._held and before != (self._state, len(self._held)):
            before = self._state, len(self._held)
            if self._state == "text":
                shown += self._take_text()
            elif self._state == "name":
                self._take_name(deltas)
            elif self._state == "arguments":
                self._take_arguments(deltas)
            elif self._state == "after":
                self._take_after()
            else:
                self._held = ""
        return shown, deltas

    def flush(self) -> str:
        """Text that was held back because a call might have begun."""
        held, self._held = self._held, ""
        return held if self._state == "text" else ""

    def _take_text(self) -> str:
        first = self._form.first
        at = self._held.find(first)
        if at >= 0:
            shown, self._held = self._held[:at], self._held[at + len(first) :]
            self._state = "name"
            return shown
        n = _overlap(self._held, first)
        shown, self._held = self._held[: len(self._held) - n], self._held[len(self._held) - n :]
        return shown

    def _take_name(self, deltas: list[CallDelta]) -> None:
        name, mid, rest = self._held.partition(self._form.mid)
        if not mid:
            return
        deltas.append(CallDelta(self.n_calls, f"call_{uuid4().hex[:24]}", name))
        self.n_calls += 1
        self._held, self._state, self._depth = rest, "arguments", 0
        self._string = self._escaped = False

    def _take_arguments(self, deltas: list[CallDelta]) -> None:
        n = self._end_of_object()
        part = self._held if n is None else self._held[:n]
        self._held = self._held[len(part) :]
        if part:
            deltas.append(CallDelta(self.n_calls - 1, arguments=part))
        if n is not None:
            self._state = "after"

    def _end_of_object(self) -> int | None:
        """Where the arguments end in what is held, None if not there."""
        for i, char in enumerate(self._held):
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
                    return i + 1
        return None

    def _take_after(self) -> None:
        separator = self._form.separator
        if self._held.startswith(separator):
            self._held, self._state = self._held[len(separator) :], "name"
        elif not separator.startswith(self._held):
            self._state = "end"


def _overlap(text: str, mark: str) -> int:
    """How much of the end of a text may be the beginning of a mark."""
    for n in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-n:]):
            return n
    return 0
