"""Conversations to prompts, and answers taken apart while they come."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gguflow.engine.generate import Asked, stream
from gguflow.engine.message import ChatMessage, ToolCall
from gguflow.engine.piece import FinishReason, Piece, PieceKind
from gguflow.engine.session import Session

if TYPE_CHECKING:
    from gguflow.engine.model import Model
    from gguflow.models.chat_parts import ChatForm, Parser, Part
    from gguflow.models.chat_tools import Texts


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation as the model sees it. text: its end may have begun the thoughts. form: how
    answers are to be taken apart; None where all of an answer is content. functions: those that the
    model may call; None without tools."""

    ids: list[int]
    text: str
    form: ChatForm | None
    functions: Texts | None


def chat_prompt(
    model: Model,
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[Mapping[str, object]] | None,
    template: str | None,
    variables: Mapping[str, object] | None,
) -> ChatPrompt:
    """The prompt of a conversation. template: instead of the model's own. Raises ChatTemplateError,
    and TypeError for messages that are none."""
    if isinstance(messages, str | bytes | Mapping):
        raise TypeError("messages is a list of mappings with role and content")
    if template is not None and not isinstance(template, str):
        raise TypeError(f"template {template!r}: expected a format's name or a jinja2 template")
    if tools is not None and (
        isinstance(tools, str | bytes | Mapping) or not all(isinstance(t, Mapping) for t in tools)
    ):
        raise TypeError("tools is a list of mappings, as OpenAI's API has them")
    from gguflow.models.chat import ChatTemplate, check_variables  # jinja2: not for plain text
    from gguflow.models.chat_history import in_words, rendered
    from gguflow.models.chat_parts import ChatForm
    from gguflow.models.chat_tools import functions, shows_tools, told_of_tools

    check_variables(variables or {})
    chosen = model.chat_template
    if template is not None:
        chosen = ChatTemplate.for_model(model.source.metadata, model.tokenizer, template)
    given = {"tools": tools, **(variables or {})}
    told = not shows_tools(chosen.source)
    if all(isinstance(m, Mapping) for m in messages):  # else the template says so
        messages = [_with_objects(m) for m in messages]
        if told:
            messages = [in_words(m) for m in messages]
        if told and tools:
            messages, given = told_of_tools(messages, tools), {**given, "tools": None}
    text = rendered(chosen, messages, **given)
    ids = chosen.ids(model.tokenizer, text)
    model.check_prompt(ids)
    form = ChatForm.of(chosen.source)
    if tools:
        form = form.with_calls(told)
    known = functions(tools) if tools else None
    return ChatPrompt(ids, text, form if tools or form.thinks else None, known)


def _with_objects(message: Mapping[str, object]) -> Mapping[str, object]:
    """A message whose calls have objects for arguments, where they came as text, as OpenAI's API
    has them. What is no JSON stays as it is: the template may know what to do with it."""
    calls: Any = message.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return message
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Any) -> Any:
    try:
        text = call["function"]["arguments"]
        found = json.loads(text) if isinstance(text, str) else text
        return {**call, "function": {**call["function"], "arguments": found}}
    except (KeyError, TypeError, ValueError, RecursionError):
        return call


def answer(session: Session, asked: Asked, prompt: ChatPrompt) -> Iterator[Piece]:
    """The pieces of one answer on a session, each of one kind, and the message with the last."""
    form = prompt.form
    if form is None:
        return _apart(stream(session, asked), None, False)
    show = form.marker_ids(session.model.tokenizer)
    parser = form.parser(prompt.text, prompt.functions is not None, prompt.functions)
    return _apart(stream(session, asked, show), parser, form.short_ids)


def _apart(pieces: Iterator[Piece], parser: Parser | None, short_ids: bool) -> Iterator[Piece]:
    """Pieces of text to pieces of one kind each. parser: None where all is content."""
    kinds, waiting = _Kinds(short_ids), list[Piece]()
    for piece in pieces:
        waiting.append(piece)  # whose tokens go with the next text
        if parser is None:
            kinds.say(piece.text, "content")
        else:
            parts = parser.push(piece.text)
            if piece.finish_reason is not None:
                parts += parser.finish(cut=piece.finish_reason != "stop")
            for part in parts:
                kinds.take(part)
        said = kinds.said()
        if piece.finish_reason is None:
            for text, kind in said:
                yield _piece(text, kind, waiting)
                waiting.clear()
            continue
        for text, kind in said[:-1]:
            yield _piece(text, kind, waiting)
            waiting.clear()
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
