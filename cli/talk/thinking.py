"""Thoughts and answers apart: models that reason write their thoughts between two marks."""

from __future__ import annotations

from gguflow.engine.text import StopStrings

# What opens and closes thoughts, as the families' own templates have it.
MARKS = {
    "<think>": "</think>",
    "[THINK]": "[/THINK]",
    "<thinking>": "</thinking>",
    "<reasoning>": "</reasoning>",
}


def open_mark(prompt: str) -> str | None:
    """The mark that a prompt ends with, having begun the model's thoughts for it."""
    end = prompt.rstrip()
    return next((mark for mark in MARKS if end.endswith(mark)), None)


class ThoughtSplitter:
    """Text as it comes to (is a thought, text) parts; marks are no part of either. Thoughts only
    begin an answer. What may be the beginning of a mark is held back."""

    def __init__(self, mark: str | None = None) -> None:
        """mark: what the prompt has opened already."""
        self.mark = mark  # whose thoughts are being told
        self._may_open = mark is None
        self._held = ""
        self._node = 0
        self._stops = StopStrings([MARKS[mark]] if mark else list(MARKS))
        self._strip = mark is not None  # blank lines at the beginning

    @property
    def is_thinking(self) -> bool:
        return self.mark is not None

    def push(self, text: str) -> list[tuple[bool, str]]:
        """The parts that a text completes."""
        parts: list[tuple[bool, str]] = []
        for char in text:
            if not (self._may_open or self.mark):
                self._add(parts, char)
                continue
            self._held += char
            self._node = self._stops.step(self._node, char)
            found = self._stops.found(self._node)
            if found is not None:
                self._add(parts, self._held[: -len(found)])
                self._turn(found)
                continue
            clear = len(self._held) - self._stops.n_held(self._node)
            if clear:
                if self.mark is None and self._held[:clear].strip():
                    self._may_open = False  # the answer has begun
                    clear = len(self._held)
                self._add(parts, self._held[:clear])
                self._held = self._held[clear:]
        return parts

    def flush(self) -> list[tuple[bool, str]]:
        """What was held back, at the end."""
        parts: list[tuple[bool, str]] = []
        self._add(parts, self._held)
        self._held = ""
        return parts

    def close(self) -> None:
        """The thoughts end here, by somebody else's word."""
        if self.mark is not None:
            self._turn(MARKS[self.mark])

    def _turn(self, found: str) -> None:
        self._held, self._node, self._strip = "", 0, True
        self._may_open = False
        if self.mark is None:
            self.mark = found
            self._stops = StopStrings([MARKS[found]])
        else:
            self.mark = None

    def _add(self, parts: list[tuple[bool, str]], text: str) -> None:
        if self._strip:
            text = text.lstrip("\n")
            self._strip = not text
        if not text:
            return
        if parts and parts[-1][0] == self.is_thinking:
            text = parts.pop()[1] + text
        parts.append((self.is_thinking, text))
