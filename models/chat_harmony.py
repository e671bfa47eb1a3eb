"""Answers of gpt-oss: messages with a header that names a channel and, for calls, a recipient.

<|channel|>analysis<|message|>thinking<|end|><|start|>assistant<|channel|>final<|message|>answer
<|channel|>commentary to=functions.name <|constrain|>json<|message|>{"key": 1}<|call|>
"""

from __future__ import annotations

import re

from .chat_text import Held, Markup, Text, longest_start, markup
from .chat_tools import CallDelta, ToolCall, named_call, new_call_id

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
HARMONY_MARKERS = (_START, _CHANNEL, _MESSAGE, "<|constrain|>", *_ENDS)
_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.\-]+)")


HarmonyPart = Text | Markup | ToolCall | CallDelta


class HarmonyParser:
    """Of one answer; see `chat_parts.Parser`. tools: whether calls are looked for. streamed: they
    come as `CallDelta`s while they are written, whatever they hold, not as whole `ToolCall`s."""

    def __init__(self, prompt: str = "", tools: bool = True, streamed: bool = False) -> None:
        self._tools, self._streamed = tools, streamed
        self.n_calls = 0  # that have begun, where they are streamed
        self._in_call = False
        self._held = Held()
        self._waiting = ""
        self._first = True
        # The header of the message that comes, and whether its text has begun: a prompt may have
        # opened either.
        opened = prompt[prompt.rfind(_START) :] if _START in prompt else ""
        self._header, begun, _ = opened.partition(_MESSAGE)
        self._in_text = bool(begun)
        if opened.endswith(_ENDS):
            self._header, self._in_text = "", False

    @property
    def thinking(self) -> bool:
        return self._in_text and "analysis" in self._header

    def push(self, text: str) -> list[HarmonyPart]:
        self._waiting += text
        parts: list[HarmonyPart] = []
        while self._in_message(parts) if self._in_text else self._in_header(parts):
            self._first = False
        return parts

    def finish(self, cut: bool = False) -> list[HarmonyPart]:
        parts: list[HarmonyPart] = []
        if self._in_text:
            self._message(self._waiting, True, parts)
        else:  # no header came to its end: plain text
            parts += self._held.push("content", self._waiting)
        self._waiting = ""
        return [*parts, *self._held.finish()]

    def _in_header(self, parts: list[HarmonyPart]) -> bool:
        said = self._waiting.lstrip()
        if self._first and said and said[0] != "<" and _CHANNEL not in self._header:
            self._header, self._in_text = _CHANNEL + "final", True  # an answer without a header
            return True
        head, found, rest = self._waiting.partition(_MESSAGE)
        if not found:
            return False
        self._header, self._in_text, self._waiting = self._header + head, True, rest
        parts += markup(head + found, calls=self._recipient() is not None)
        return True

    def _in_message(self, parts: list[HarmonyPart]) -> bool:
        text = self._waiting
        at, end = min(((i, e) for e in (*_ENDS, _START) if (i := text.find(e)) >= 0),
                      default=(-1, ""))  # fmt: skip
        if at < 0:
            if self._streamed or not self._recipient():
                keep = longest_start(text, (*_ENDS, _START))
                self._message(text[: len(text) - keep], False, parts)
                self._waiting = text[len(text) - keep :]
            return False
        self._message(text[:at], True, parts)
        self._waiting = text[at + len(end) :]
        self._header, self._in_text, self._in_call = "", False, False
        parts += self._held.end_of_section(end)
        return True

    def _recipient(self) -> str | None:
        found = _RECIPIENT.search(self._header) if self._tools else None
        return found[1] if found else None

    def _message(self, text: str, whole: bool, parts: list[HarmonyPart]) -> None:
        name = self._recipient()
        if name and self._streamed:
            if not self._in_call:
                self._in_call = True
                self.n_calls += 1
                parts.append(CallDelta(self.n_calls - 1, new_call_id(), name))
            if text:
                parts.append(CallDelta(self.n_calls - 1, arguments=text))
            return
        if whole and name:
            try:
                call = named_call(name, text)
                parts += [*markup(text, calls=True), call]
                return
            except (ValueError, RecursionError):
                pass
        parts += self._held.push("reasoning" if "analysis" in self._header else "content", text)
