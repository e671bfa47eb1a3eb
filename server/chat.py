"""/v1/chat/completions."""

from __future__ import annotations

from typing import Any

from gguflow.models.chat_tools import CallDelta

from .answer import Answers
from .asks import choices, unused
from .errors import refused
from .events import ChunkWriter
from .exchange import DONE, Exchange
from .logprobs import chat_logprobs
from .reading import Reader
from .schema.base import parse, unknown_fields
from .schema.chat import ChatBody
from .turn import Turn


async def chat_completions(exchange: Exchange) -> None:
    """Answer a conversation."""
    body = parse(ChatBody, await exchange.body())
    exchange.warnings += unknown_fields(body)
    _check(body, exchange)
    async with exchange.service.using(exchange, body.model, "chat") as (loaded, line):
        turn = await Turn.of(loaded, body, exchange)
        n = body.n or 1
        answers = Answers(exchange, loaded, choices(turn.ask, n), line)
        name = exchange.service.manager.shown(body.model)
        head = f"chatcmpl-{exchange.id}", int(exchange.began), name
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
    if body.top_logprobs and not body.logprobs:  # 0 asks for none
        raise refused("top_logprobs", "needs logprobs")
    if body.stream_options is not None and not body.stream:
        raise refused("stream_options", "needs stream")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise refused("max_tokens", "max_completion_tokens says the same: give one")
    if body.add_generation_prompt and body.continue_final_message:
        raise refused("continue_final_message", "not with add_generation_prompt")
    if body.continue_final_message and body.messages[-1].role != "assistant":
        raise refused("continue_final_message", "the last message is not the assistant's")
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        exchange.warnings.append("stream_options.include_obfuscation")
    for name in ("user", "service_tier"):
        if name in body.model_fields_set and getattr(body, name) not in (None, "auto", "default"):
            exchange.warnings.append(name)
    if body.reasoning_effort is not None and "reasoning_effort" in (
        body.chat_template_kwargs or {}
    ):
        raise refused("reasoning_effort", "chat_template_kwargs has it too")


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
            "usage": answers.usage(sum(r.n_reasoning for r in readers)),
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
        thought, text, deltas = reader.take(piece)
        if thought:
            await exchange.event(chunks.choice(_choice(i, {"reasoning_content": thought})))
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
        await exchange.event(chunks.usage(answers.usage(sum(r.n_reasoning for r in readers))))
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
