"""Reads calls out of an answer as its text comes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gguflow.models.chat_tools import CallDelta, new_call_id

from .formats import COUNT, ToolFormat
from .readers import Kinds, Reader, overlap, reader

_NAME = re.compile(r"[\w.\-]*")
_NOTHING: Mapping[str, Kinds] = {}


class CallParser:
    """Text in, text and parts of calls out. kinds: of arguments by function and name."""

    def __init__(self, form: ToolFormat, kinds: Mapping[str, Kinds] = _NOTHING) -> None:
        self._form, self._kinds = form, kinds
        self._rest = _literal(form.first[len(form.trigger) :])
        self._mid, self._separator = _literal(form.mid), _literal(form.separator)
        self._state = "text"
        self._held = ""
        self._number = ""
        self._reader: Reader | None = None
        self.n_calls = 0

    @property
    def complete(self) -> bool:
        """Whether an answer that ends here ends with whole calls."""
        return self.n_calls > 0 and self._state in ("after", "end")

    @property
    def cut(self) -> bool:
        """Whether an answer that ends here ends within a call."""
        return self._state in ("head", "name", "arguments")

    def push(self, text: str) -> tuple[str, list[CallDelta]]:
        """The text and the parts of calls that this makes known."""
        self._held += text
        shown, deltas = "", list[CallDelta]()
        before = None
        while self._held and before != (self._state, len(self._held)):
            before = self._state, len(self._held)
            if self._state == "text":
                shown += self._take_text()
            elif self._state == "head":
                shown += self._take_head()
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
        if self._state == "head":
            return self._form.trigger + held
        return held if self._state == "text" else ""

    def _take_text(self) -> str:
        shown, trigger, rest = self._held.partition(self._form.trigger)
        if trigger:
            self._state, self._held = "head", rest
            if not self._rest.pattern:
                self._state = "name"
            return shown
        n = overlap(self._held, self._form.trigger)
        shown, self._held = self._held[: len(self._held) - n], self._held[len(self._held) - n :]
        return shown

    def _take_head(self) -> str:
        """What stands between the first mark and the name; where it does not, this is text."""
        if (found := self._rest.match(self._held)) is not None:
            self._state, self._held = "name", self._held[found.end() :]
            self._number = found[1] if found.re.groups else ""
            return ""
        if _may_become(self._form.first[len(self._form.trigger) :], self._held):
            return ""
        self._state = "text"
        return self._form.trigger

    def _take_name(self, deltas: list[CallDelta]) -> None:
        if self._form.mid:
            found = self._mid.search(self._held)
            if found is None:
                return
            name, rest = self._held[: found.start()], self._held[found.end() :]
            self._number = found[1] if found.re.groups else self._number
        else:
            end = _NAME.match(self._held).end()  # type: ignore[union-attr]
            if end == len(self._held):
                return
            name, rest = self._held[:end], self._held[end:]
        deltas.append(CallDelta(self.n_calls, self._id(name), name))
        self.n_calls += 1
        self._held, self._state = rest, "arguments"
        self._reader = reader(self._form, self._kinds.get(name, {}))

    def _id(self, name: str) -> str:
        ids = self._form.ids
        if ids in ("short", "long"):
            return new_call_id(short=ids == "short")
        return ids.format(name=name, number=self._number)

    def _take_arguments(self, deltas: list[CallDelta]) -> None:
        assert self._reader is not None
        read = self._reader.feed(self._held)
        self._held = read.rest
        if read.json:
            deltas.append(CallDelta(self.n_calls - 1, arguments=read.json))
        if read.ended:
            self._state = "after"

    def _take_after(self) -> None:
        if (found := self._separator.match(self._held)) is not None and self._form.parallel:
            self._number = found[1] if found.re.groups else ""
            self._held, self._state = self._held[found.end() :], "name"
        elif not _may_become(self._form.separator, self._held):
            self._state = "end"


def _literal(text: str) -> re.Pattern[str]:
    """A form's text as a pattern, its number as a group."""
    return re.compile(r"(\d+)".join(re.escape(part) for part in text.split(COUNT)))


def _may_become(text: str, beginning: str) -> bool:
    """Whether a text may begin so and go on."""
    at = 0
    for part in re.split(f"({COUNT})", text):
        if part == COUNT:
            n = len(beginning) - len(beginning[at:].lstrip("0123456789"))
            if n == at and at < len(beginning):
                return False
            at = n
        elif not beginning[at:].startswith(part):
            return part.startswith(beginning[at:])
        else:
            at += len(part)
        if at == len(beginning):
            return True
    return False
