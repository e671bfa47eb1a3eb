"""An answer as it comes, taken apart: thoughts, text, calls, probabilities, why it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gguflow.engine.calls.formats import ToolFormat
from gguflow.engine.calls.parse import CallParser
from gguflow.engine.calls.readers import Kinds
from gguflow.engine.dataclass import dataclass, field
from gguflow.models.chat_harmony import HarmonyParser
from gguflow.models.chat_parts import Parser
from gguflow.models.chat_text import Text
from gguflow.models.chat_tools import CallDelta

from .answer import Piece
from .logprobs import chat_logprobs


@dataclass
class Call:
    """A call, as far as it has come."""

    id: str
    name: str
    arguments: str = ""


class Taken(NamedTuple):
    """What is new in a piece."""

    reasoning: str
    text: str
    calls: list[CallDelta]


@dataclass
class Reader:
    """One answer. parser: tells thoughts and text apart; None where all is text. calls_of: reads
    calls; None where there are none, or where the parser does. shows: whether thoughts are told.

    finish: why it ended. n_reasoning: tokens of thoughts.
    """

    tokenizer: Any
    parser: Parser | None = None
    calls_of: CallParser | None = None
    shows: bool = True
    reasoning: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    n_reasoning: int = 0

    def take(self, piece: Piece) -> Taken:
        """What is new in a piece. Arguments of calls are kept too."""
        if self.parser is None and self.calls_of is None:
            self.finish = piece.finish
            return Taken("", piece.text, [])
        thought, text, deltas = self._parts(piece)
        if self.calls_of is not None:
            text, deltas = self.calls_of.push(text)
            if piece.finish is not None:
                text += self.calls_of.flush()
        for d in deltas:
            if d.name is not None:
                self.calls.append(Call(d.id or "", d.name))
            self.calls[d.index].arguments += d.arguments
        if piece.finish is not None:
            self.finish = self._ended(piece.finish)
        return Taken(thought if self.shows else "", text, deltas)

    def _parts(self, piece: Piece) -> tuple[str, str, list[CallDelta]]:
        if self.parser is None:
            return "", piece.text, []
        parts = []
        for i, text in enumerate(piece.texts):
            thinks = self.parser.thinking
            parts += self.parser.push(text)
            # What follows the last token's text is none's.
            self.n_reasoning += i < len(piece.tokens) and (thinks or self.parser.thinking)
        if piece.finish is not None:
            parts += self.parser.finish()
        texts = [p for p in parts if isinstance(p, Text)]
        return (
            "".join(p.text for p in texts if p.kind == "reasoning"),
            "".join(p.text for p in texts if p.kind == "content"),
            [p for p in parts if isinstance(p, CallDelta)],
        )

    def _ended(self, finish: str) -> str:
        """Why, with a look at the calls: one that a text of the request's cut is not complete."""
        if finish != "stop":
            return finish
        if self.calls_of is not None and self.calls_of.cut:
            return "length"
        if not self.calls:
            return finish
        try:
            json.loads(self.calls[-1].arguments)
        except ValueError:
            return "length"
        return "tool_calls"

    def keep(self, piece: Piece) -> Taken:
        """The same, all of it kept."""
        taken = self.take(piece)
        self.reasoning.append(taken.reasoning)
        self.text.append(taken.text)
        self.logprobs += chat_logprobs(self.tokenizer, piece.tokens)
        return taken

    def message(self) -> dict[str, Any]:
        """The assistant's message."""
        text = "".join(self.text)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if thought := "".join(self.reasoning):
            message["reasoning_content"] = thought
        if self.calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {"id": c.id, "type": "function",
                 "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.calls
            ]  # fmt: skip
        return message


def call_reader(
    form: ToolFormat, kinds: Mapping[str, Kinds], prompt: str
) -> tuple[Parser | None, CallParser | None]:
    """What reads calls: messages with headers are read whole, others behind what tells thoughts and
    text apart."""
    if form.channels:
        return HarmonyParser(prompt, streamed=True), None
    return None, CallParser(form, kinds)
