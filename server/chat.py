"""/v1/chat/completions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .answer import Answers, Ask, Piece
from .asks import choices, compiled, form_of, make_ask, unused
from .constraints import Checked
from .errors import refused
from .events import ChunkWriter
from .exchange import DONE, Exchange
from .logprobs import chat_logprobs
from .prompting import chat_ids, check_ids
from .schema.base import parse, unknown_fields
from .schema.chat import ChatBody, NamedTool
from .tools.grammar import markers, schemas, tool_grammar
from .tools.parse import CallDelta, CallParser

if TYPE_CHECKING:
    from .manager import Loaded


async def chat_completions(exchange: Exchange) -> None:
    """Answer a conversation."""
    body = parse(ChatBody, await exchange.body())
    exchange.warnings += unknown_fields(body)
    _check(body, exchange)
    async with exchange.service.using(exchange, body.model, "chat") as (loaded, line):
        turn = await Turn.of(loaded, body, exchange)
        n = body.n or 1
        answers = Answers(exchange, loaded, choices(turn.ask, n), line)
        head = f"chatcmpl-{exchange.id}", int(exchange.began), loaded.spec.name
        readers = [turn.reader(loaded) for _ in range(n)]
        if body.stream:
            await _stream(exchange, body, answers, readers, head)
        else:
            await _whole(exchange, answers, readers, head)
        line.finish = readers[0].finish


def _check(body: ChatBody, exchange: Exchange) -> None:
    """Refuses what this server does not do."""
    most = exchange.service.config.max_choices
    if (body.n or 1) > most:
        raise refused("n", f"at most {most} answers to a request")
    unused(body.store, (None, False), "store", "this server keeps no conversations")
    unused(body.modalities, (None, ["text"]), "modalities", "answers are text")
    if body.top_logprobs is not None and not body.logprobs:
        raise refused("top_logprobs", "needs logprobs")
    if body.stream_options is not None and not body.stream:
        raise refused("stream_options", "needs stream")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise refused("max_tokens", "max_completion_tokens says the same: give one")
    if body.add_generation_prompt and body.continue_final_message:
        raise refused("continue_final_message", "not with add_generation_prompt")
    if body.continue_final_message and body.messages[-1].role != "assistant":
        raise refused("continue_final_message", "the last message is not the assistant's")
    for name in ("user", "service_tier"):
        if name in body.model_fields_set and getattr(body, name) not in (None, "auto", "default"):
            exchange.warnings.append(name)
    if body.reasoning_effort is not None and "reasoning_effort" in (
        body.chat_template_kwargs or {}
    ):
        raise refused("reasoning_effort", "chat_template_kwargs has it too")


@dataclass
class Turn:
    """A conversation ready to be answered. calls: whether the answer may hold some."""

    ask: Ask
    calls: bool

    @classmethod
    async def of(cls, loaded: Loaded, body: ChatBody, exchange: Exchange) -> Turn:
        """Prompt, constraint and settings of a body. Raises ApiError."""
        tools = [] if body.tool_choice == "none" else body.tools or []
        if not tools and body.tool_choice not in (None, "none", "auto"):
            raise refused("tool_choice", "there are no tools")
        if body.tool_choice == "auto" and body.tools is None:
            raise refused("tool_choice", "there are no tools")
        variables = dict(body.chat_template_kwargs or {})
        if body.reasoning_effort is not None:
            if "reasoning_effort" in loaded.template.source:
                variables["reasoning_effort"] = body.reasoning_effort
            else:
                exchange.warnings.append("reasoning_effort")
        for name in variables:
            if name not in loaded.template.source:
                exchange.warnings.append(f"chat_template_kwargs.{name}")
        continued = bool(body.continue_final_message)
        ids = await asyncio.to_thread(
            chat_ids, loaded, body.messages, tools, variables=variables,
            add_generation_prompt=body.add_generation_prompt is not False and not continued,
            continue_final_message=continued,
        )  # fmt: skip
        check_ids(loaded, ids, "messages")
        constraint = (
            await _tool_constraint(loaded, body, exchange)
            if tools
            else await compiled(loaded, form_of(body))
        )
        whole = body.max_completion_tokens is not None
        ask = make_ask(
            loaded, body, exchange.service.config, ids,
            max_tokens=body.max_completion_tokens if whole else body.max_tokens,
            max_field="max_completion_tokens" if whole else "max_tokens",
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            constraint=constraint,
            shown=markers(loaded.tools, loaded.vocabulary) if tools else frozenset(),
        )  # fmt: skip
        return cls(ask, bool(tools))

    def reader(self, loaded: Loaded) -> Reader:
        """For one of its answers."""
        return Reader(loaded, CallParser(loaded.tools) if self.calls else None)


async def _tool_constraint(loaded: Loaded, body: ChatBody, exchange: Exchange) -> Checked:
    """The grammar of text and calls that a body asks for."""
    tools = body.tools or []
    names = [t.function.name for t in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise refused(f"tools.{i}.function.name", f"there are two tools {name!r}")
    form = form_of(body)
    answer: Any = None
    if form is not None:
        answer = form.schema
        if answer is None:
            raise refused(form.field, "next to tools, only JSON can be asked for")

    def build() -> Checked:
        arguments, hints = schemas(tools, loaded.vocabulary)
        exchange.warnings += hints
        choice, listed = body.tool_choice, names
        if isinstance(choice, NamedTool):
            if choice.function.name not in names:
                raise refused("tool_choice", f"there is no tool {choice.function.name!r}")
            at = names.index(choice.function.name)
            listed, arguments = names[at : at + 1], arguments[at : at + 1]
        required = choice == "required" or isinstance(choice, NamedTool)
        if required and answer is not None:
            raise refused("response_format", "the answer is a call: tool_choice says so")
        parallel = body.parallel_tool_calls is not False and not isinstance(choice, NamedTool)
        grammar = tool_grammar(
            loaded.tools, listed, arguments, loaded.vocabulary,
            required=required, parallel=parallel, answer=answer,
        )  # fmt: skip
        return loaded.vocabulary.check(grammar)

    return await asyncio.to_thread(build)


# -- answers ---------------------------------------------------------------------------------------


@dataclass
class Call:
    """A call, as far as it has come."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Reader:
    """One answer: its text, its calls, its probabilities. finish: why it ended."""

    loaded: Loaded
    parser: CallParser | None
    text: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None

    def take(self, piece: Piece) -> tuple[str, list[CallDelta]]:
        """The text and parts of calls in a piece."""
        text, deltas = piece.text, list[CallDelta]()
        if self.parser is not None:
            text, deltas = self.parser.push(piece.text)
            if piece.finish is not None:
                text += self.parser.flush()
        if piece.finish is not None:
            calls = self.parser is not None and self.parser.complete
            self.finish = "tool_calls" if calls and piece.finish == "stop" else piece.finish
        return text, deltas

    def keep(self, piece: Piece) -> None:
        """The same, all of it kept."""
        text, deltas = self.take(piece)
        self.text.append(text)
        for d in deltas:
            if d.name is not None:
                self.calls.append(Call(d.id or "", d.name))
            self.calls[-1].arguments += d.arguments
        self.logprobs += chat_logprobs(self.loaded.tokenizer, piece.tokens)

    def message(self) -> dict[str, Any]:
        """The assistant's message."""
        text = "".join(self.text)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self.calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {"id": c.id, "type": "function",
                 "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.calls
            ]  # fmt: skip
        return message


async def _whole(
    exchange: Exchange, answers: Answers, readers: list[Reader], head: tuple[str, int, str]
) -> None:
    async for i, piece in answers.pieces():
        readers[i].keep(piece)
    wants = answers.asks[0].request.logprobs is not None
    id, created, model = head
    await exchange.json(
        {
            "id": id, "object": "chat.completion", "created": created, "model": model,
            "choices": [
                {"index": i, "message": r.message(), "finish_reason": r.finish,
                 "logprobs": {"content": r.logprobs, "refusal": None} if wants else None}
                for i, r in enumerate(readers)
            ],
            "usage": answers.usage,
        }
    )  # fmt: skip


async def _stream(
    exchange: Exchange,
    body: ChatBody,
    answers: Answers,
    readers: list[Reader],
    head: tuple[str, int, str],
) -> None:
    id, created, model = head
    usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    chunks = ChunkWriter(id, "chat.completion.chunk", created, model, usage)
    tokenizer, wants = answers.loaded.tokenizer, bool(body.logprobs)
    async for i, piece in answers.pieces():
        if not exchange.streams:
            await exchange.begin_events()
            for k in range(len(readers)):
                delta = {"role": "assistant", "content": "", "refusal": None}
                await exchange.event(chunks.choice(_choice(k, delta)))
        reader = readers[i]
        text, deltas = reader.take(piece)
        if wants and piece.tokens:
            found = {"content": chat_logprobs(tokenizer, piece.tokens), "refusal": None}
            delta = {"content": text} if text else {}
            await exchange.event(chunks.choice(_choice(i, delta, found)))
        elif text:
            await exchange.event(chunks.text(i, text))
        for d in deltas:
            await exchange.event(chunks.choice(_choice(i, {"tool_calls": [_delta(d)]})))
        if reader.finish is not None:
            await exchange.event(chunks.choice(_choice(i, {}, finish=reader.finish)))
    if usage:
        await exchange.event(chunks.usage(answers.usage))
    await exchange.event(DONE)
    await exchange.end_events()


def _choice(
    i: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None
) -> dict[str, Any]:
    return {"index": i, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _delta(d: CallDelta) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": d.arguments}
    if d.name is None:
        return {"index": d.index, "function": function}
    function["name"] = d.name
    return {"index": d.index, "id": d.id, "type": "function", "function": function}
