"""/v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gguflow.engine.dataclass import replace
from gguflow.engine.serving.request import Token

from .answer import Answers, Ask, Piece
from .asks import choices, compiled, form_of, make_ask
from .errors import refused
from .events import ChunkWriter
from .exchange import DONE, Exchange
from .logprobs import TextLogprobs, entries
from .prompting import check_ids, check_size
from .schema.base import parse, unknown_fields
from .schema.chat import CompletionBody

if TYPE_CHECKING:
    from .manager import Loaded


SHORT = 1024  # characters, of which a millisecond makes tokens


async def completions(exchange: Exchange) -> None:
    """Continue texts."""
    body = parse(CompletionBody, await exchange.body())
    exchange.warnings += unknown_fields(body)
    _check(body, exchange)
    async with exchange.service.using(exchange, body.model, "completion") as (loaded, line):
        n = body.n or 1
        if _is_short(body.prompt):
            prompts = prompt_ids(loaded, body)
        else:
            prompts = await asyncio.to_thread(prompt_ids, loaded, body)
        most = exchange.service.config.max_choices
        if n * len(prompts) > most:
            raise refused("prompt", f"at most {most} answers to a request")
        constraint = await compiled(loaded, await form_of(body))
        ask = make_ask(
            loaded, body, exchange.service.config, prompts[0],
            max_tokens=16 if body.max_tokens is None else body.max_tokens,
            max_field="max_tokens", logprobs=body.logprobs, constraint=constraint,
        )  # fmt: skip
        if body.echo and body.logprobs is not None:
            ask = replace(ask, request=replace(ask.request, prompt_logprobs=True))
        asks: list[Ask] = []
        for ids in prompts:
            asks += choices(replace(ask, request=replace(ask.request, ids=ids)), n)
        answers = Answers(exchange, loaded, asks, line)
        readers = [Reader(loaded, body, a.request.ids) for a in asks]
        name = exchange.service.manager.shown(body.model)
        head = f"cmpl-{exchange.id}", int(exchange.began), name
        if body.stream:
            await _stream(exchange, body, answers, readers, head)
        else:
            await _whole(exchange, answers, readers, head)
        line.finish = readers[0].finish


def _check(body: CompletionBody, exchange: Exchange) -> None:
    """Refuses what this server does not do."""
    if body.suffix:
        raise refused("suffix", "text is continued, not filled in")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise refused("best_of", "as many answers are made as `n` asks for")
    if body.stream_options is not None and not body.stream:
        raise refused("stream_options", "needs stream")
    if body.echo and body.logprobs is not None and body.max_tokens == 0:
        raise refused("max_tokens", "with echo and logprobs, at least 1")
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        exchange.warnings.append("stream_options.include_obfuscation")
    if body.user is not None:
        exchange.warnings.append("user")


def _is_short(prompt: Any) -> bool:
    """Whether its tokens are found in less time than another thread takes to be asked."""
    return isinstance(prompt, str) and len(prompt) <= SHORT


def prompt_ids(loaded: Loaded, body: CompletionBody) -> list[list[int]]:
    """The prompts' tokens. Takes long for long texts. Raises ApiError."""
    given = body.prompt
    if isinstance(given, str):
        texts: Sequence[Any] = [given]
    elif given and isinstance(given[0], int):
        texts = [given]
    else:
        texts = given
    if not texts:
        raise refused("prompt", "no prompts")
    out = []
    for i, text in enumerate(texts):
        field = "prompt" if len(texts) == 1 else f"prompt.{i}"
        ids = text
        if isinstance(text, str):
            if body.add_special_tokens is False and not text:
                raise refused(field, "the prompt has no tokens")
            check_size(loaded, len(text), field)
            special = body.add_special_tokens is not False
            ids = loaded.tokenizer.encode(text, add_special=special)
        check_ids(loaded, ids, field)
        out.append(ids)
    return out


class Reader:
    """One continuation: its text and its probabilities."""

    def __init__(self, loaded: Loaded, body: CompletionBody, ids: Sequence[int]) -> None:
        self.finish: str | None = None
        self.text: list[str] = []
        self.entries: list[Any] = []
        self._ids, self._wants = ids, body.logprobs is not None
        self._echo = bool(body.echo)
        self._tokenizer = loaded.tokenizer
        self.offsets = TextLogprobs(loaded.tokenizer, begins=self._echo)

    def take(self, piece: Piece) -> tuple[str, list[Any]]:
        """The text of a piece and what is known of its tokens."""
        text, found = piece.text, list[Any]()
        if self._echo and (piece.tokens or piece.finish):
            self._echo = False
            text = self._tokenizer.decode(self._ids) + text
            if self._wants:
                found += self._of_prompt(piece.tokens)
        if self._wants:
            found += entries(piece.tokens)
        self.finish = piece.finish or self.finish
        return text, found

    def _of_prompt(self, tokens: Sequence[Token]) -> list[Any]:
        known = tokens[0].prompt_logprobs if tokens else ()
        return [(id, p, top) for id, (p, top) in zip(self._ids, known, strict=False)]


async def _whole(
    exchange: Exchange, answers: Answers, readers: list[Reader], head: tuple[str, int, str]
) -> None:
    async for i, piece in answers.pieces():
        text, found = readers[i].take(piece)
        readers[i].text.append(text)
        readers[i].entries += found
    wants = answers.asks[0].request.logprobs is not None
    id, created, model = head
    await exchange.json(
        {
            "id": id, "object": "text_completion", "created": created, "model": model,
            "choices": [
                {"index": i, "text": "".join(r.text), "finish_reason": r.finish,
                 "logprobs": r.offsets.of(r.entries) if wants else None}
                for i, r in enumerate(readers)
            ],
            "usage": answers.usage(),
        }
    )  # fmt: skip


async def _stream(
    exchange: Exchange,
    body: CompletionBody,
    answers: Answers,
    readers: list[Reader],
    head: tuple[str, int, str],
) -> None:
    id, created, model = head
    usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    chunks = ChunkWriter(id, "text_completion", created, model, usage)
    async for i, piece in answers.pieces():
        if not exchange.streams:
            await exchange.begin_events()
        reader = readers[i]
        text, found = reader.take(piece)
        if found:
            choice = {"index": i, "text": text, "logprobs": reader.offsets.of(found)}
            await exchange.event(chunks.choice({**choice, "finish_reason": None}))
        elif text:
            await exchange.event(chunks.text(i, text))
        if piece.finish is not None:
            last = {"index": i, "text": "", "logprobs": None, "finish_reason": piece.finish}
            await exchange.event(chunks.choice(last))
    if usage:
        await exchange.event(chunks.usage(answers.usage()))
    await exchange.event(DONE)
    await exchange.end_events()
