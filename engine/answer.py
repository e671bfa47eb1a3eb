"""Answers of conversations taken apart while they come: pieces of one kind, and the message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gguflow.engine.message import ChatMessage, ToolCall
from gguflow.engine.piece import FinishReason, Piece, PieceKind

if TYPE_CHECKING:
    from gguflow.models.chat_parts import Parser, Part


class Apart:
    """One answer. parser: None where all is content. short_ids: whether the template wants short
    names of calls."""

    def __init__(self, parser: Parser | None, short_ids: bool) -> None:
        self._parser, self._kinds = parser, _Kinds(short_ids)
        self._waiting: list[Piece] = []  # whose tokens go with the next text

    def all(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The whole answer's, of its text's."""
        for piece in pieces:
            yield from self.push(piece)

    def push(self, piece: Piece) -> Iterator[Piece]:
        """The pieces that this one completes; with the last one comes the message."""
        kinds, waiting, parser = self._kinds, self._waiting, self._parser
        waiting.append(piece)
        if parser is None:
            kinds.say(piece.text, "content")
        else:
            parts = parser.push(piece.text)
            if piece.finish_reason is not None:
                parts += parser.finish(cut=piece.finish_reason != "stop")
            for part in parts:
                kinds.take(part)
        said = kinds.said()
        last = piece.finish_reason is not None
        for text, kind in said[:-1] if last else said:
            yield _piece(text, kind, waiting)
            waiting.clear()
        if last:
            text, kind = said[-1] if said else ("", None)
            yield _piece(text, kind, waiting, piece, kinds.message)


def _piece(
    text: str,
    kind: PieceKind | None,
    made_of: Sequence[Piece],
    last: Piece | None = None,
    message: ChatMessage | None = None,
) -> Piece:
    """A piece with the tokens of others. last: the one that the answer ended with."""
    finish: FinishReason | None = last.finish_reason if last is not None else None
    if finish == "stop" and message is not None and message.tool_calls:
        finish = "tool_calls"
    return Piece(
        text,
        [i for p in made_of for i in p.ids],
        [x for p in made_of for x in p.logprobs],
        [x for p in made_of for x in p.top_logprobs],
        finish,
        last.timings if last is not None else None,
        kind,
        message,
    )


class _Kinds:
    """Parts of an answer as they come: text by kind, and the message so far."""

    def __init__(self, short_ids: bool) -> None:
        self._short_ids = short_ids
        self._said: list[tuple[str, PieceKind | None]] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []

    def take(self, part: Part) -> None:
        """A parser's part."""
        import json

        from gguflow.models.chat_text import Markup, Text
        from gguflow.models.chat_tools import CallDelta, new_call_id

        if isinstance(part, Text):
            self.say(part.text, part.kind)
        elif isinstance(part, Markup):
            self.say(part.text, "tool_call" if part.calls else None)
        else:
            assert not isinstance(part, CallDelta)  # calls are read whole here
            id = part.id or new_call_id(self._short_ids)
            parsed: dict[str, object] = json.loads(part.arguments)
            self._calls.append(ToolCall(id, part.name, part.arguments, parsed))

    def say(self, text: str, kind: PieceKind | None) -> None:
        """Text of a kind."""
        if kind == "content":
            self._content.append(text)
        elif kind == "reasoning":
            self._reasoning.append(text)
        if self._said and self._said[-1][1] == kind:
            text = self._said.pop()[0] + text
        if text:
            self._said.append((text, kind))

    def said(self) -> list[tuple[str, PieceKind | None]]:
        """What was said since this was asked last."""
        said, self._said = self._said, []
        return said

    @property
    def message(self) -> ChatMessage:
        """The message so far."""
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        return ChatMessage(content, reasoning, tuple(self._calls))
