"""From an accepted request to its text: a place in the engine, tokens, text, why it ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from gguflow.engine.constraints.error import ConstraintError
from gguflow.engine.constraints.vocabulary import Checked
from gguflow.engine.dataclass import dataclass, field, replace
from gguflow.engine.serving.aio import EngineBusyError, EngineClosedError
from gguflow.engine.serving.request import LogitsError, Request, Token
from gguflow.engine.text import StoppingText, StopStrings
from gguflow.models.tokenizer.stream import TextStream

from .admission import QueueFullError
from .errors import ApiError, busy, unavailable
from .exchange import Exchange

if TYPE_CHECKING:
    from gguflow.engine.constraints.thinking import Budget

    from .manager import Loaded
    from .metrics import Metrics
    from .monitor import Timeline

log = logging.getLogger("gguflow.server")
_NONE = StopStrings(())


@dataclass(frozen=True)
class Ask:
    """What one sequence is to generate.

    request: as the engine takes it, without a processor. stop: texts that end it. shown: control
    tokens whose text shows. constraint: on its text. min_tokens: before it may end. bound: makes
    what ends its thoughts.
    """

    request: Request
    stop: StopStrings = _NONE
    shown: frozenset[int] = frozenset()
    constraint: Checked | None = None
    min_tokens: int = 0
    bound: Callable[[], Budget | None] = lambda: None
    ends_early: bool = False  # by tokens of the request's own
    by_token: bool = False  # whether the text of each token is asked for

    @property
    def may_be_cut(self) -> bool:
        """Whether it may end within its form though the model did not run out of tokens."""
        return self.constraint is not None and (not self.stop.is_empty or self.ends_early)


@dataclass
class Piece:
    """More of an answer. tokens: those whose text it begins with; texts: what each of them, and
    then the end, has added to the text; finish: why no more follows."""

    text: str
    tokens: list[Token] = field(default_factory=list)
    finish: str | None = None
    texts: list[str] = field(default_factory=list)


class MinTokens:
    """No end before so many tokens: a `LogitsProcessor`."""

    def __init__(self, n_least: int, ends: Sequence[int], inner: Any) -> None:
        self._n_least, self._ends, self.inner = n_least, list(ends), inner
        self.made_from = n_least, (*ends,)  # and `inner`, to make another one elsewhere

    def __call__(self, ids: Sequence[int], logits: Any) -> None:
        if self.inner is not None:
            self.inner(ids, logits)
        if len(ids) < self._n_least:
            logits[self._ends] = -float("inf")
            if self.inner is not None and not (logits > -float("inf")).any():
                raise ConstraintError("min_tokens: the answer's form is complete before")


class Answers:
    """The answers to one HTTP request: all its sequences, their pieces as they come."""

    def __init__(
        self, exchange: Exchange, loaded: Loaded, asks: Sequence[Ask], line: Timeline
    ) -> None:
        self.exchange, self.loaded, self.asks, self.line = exchange, loaded, asks, line
        self.metrics: Metrics = exchange.service.metrics
        self.n_prompt = sum(
            len(p) for p in {id(a.request.ids): a.request.ids for a in asks}.values()
        )
        self.n_generated = [0] * len(asks)
        self._n_cached: dict[int, int] = {}  # of the prompt's tokens, by prompt
        self._said: list[list[str]] = [[] for _ in asks]  # of those whose end is looked at
        line.n_prompt, line.n_choices = self.n_prompt, len(asks)

    @property
    def n_cached(self) -> int:
        """Tokens of the prompts that were in the cache when the request came."""
        return sum(self._n_cached.values())

    def usage(self, n_reasoning: int = 0) -> dict[str, Any]:
        """OpenAI's `usage`. n_reasoning: tokens of thoughts."""
        done = sum(self.n_generated)
        return {
            "prompt_tokens": self.n_prompt, "completion_tokens": done,
            "total_tokens": self.n_prompt + done,
            "prompt_tokens_details": {"cached_tokens": self.n_cached},
            "completion_tokens_details": {"reasoning_tokens": n_reasoning},
        }  # fmt: skip

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """(number of the sequence, piece). A place in the engine is waited for; the first item,
        an empty piece, comes when the first sequence has one. Raises ApiError."""
        if len(self.asks) == 1:
            async for piece in self._one(0):
                yield 0, piece
            return
        queue: asyncio.Queue[tuple[int, Piece | BaseException]] = asyncio.Queue()
        first = asyncio.Event()  # the first one's prompt is in the cache for the others

        async def run(i: int) -> None:
            try:
                if i and self.asks[i].request.ids is self.asks[0].request.ids:
                    await first.wait()
                async for piece in self._one(i):
                    if piece.tokens or piece.finish:
                        first.set()
                    queue.put_nowait((i, piece))
            except Exception as error:
                queue.put_nowait((i, error))
                first.set()

        tasks = [asyncio.create_task(run(i)) for i in range(len(self.asks))]
        try:
            left = len(tasks)
            while left:
                i, item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                left -= item.finish is not None
                yield i, item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, i: int) -> AsyncIterator[Piece]:
        """One sequence: a place, then its tokens."""
        gate, name = self.loaded.gate, self.loaded.spec.name
        came = time.perf_counter()
        try:
            await gate.enter(self.exchange.key)
        except QueueFullError as error:
            self.metrics.rejected.labels(name).inc()
            raise busy(str(error), self.exchange.service.retry_after(self.loaded)) from None
        ask, tokenizer = self.asks[i], self.loaded.tokenizer
        batches = self.loaded.engine.batches(_with_processor(ask, tokenizer))
        try:
            self.metrics.queued.labels(name).observe(time.perf_counter() - came)
            self.line.admitted = self.line.admitted or time.time()
            yield Piece("")
            text = StoppingText(_decoder(self.loaded, ask.shown), ask.stop)
            between, last = self.metrics.between, 0.0
            async for tokens in batches:
                now = time.perf_counter()
                if not last:  # the first of several answers to a prompt finds what was there
                    self._n_cached.setdefault(id(ask.request.ids), tokens[0].n_cached)
                if last:
                    between.observe(name, (now - last) / len(tokens), len(tokens))
                else:
                    self.metrics.first.labels(name).observe(now - came)
                    between.observe(name, 0.0, len(tokens) - 1)  # that came with the first
                last = now
                piece = self._read(i, tokens, text)
                if piece.finish == "stop" and ask.may_be_cut and not self._complete(i, piece):
                    piece.finish = "length"
                if piece.text or piece.tokens or piece.finish:
                    yield piece
                if piece.finish is not None:
                    self._ended(i, piece.finish, now - came)
                    return
        except EngineBusyError as error:
            raise busy(str(error), self.exchange.service.retry_after(self.loaded)) from None
        except EngineClosedError as error:
            raise unavailable(str(error)) from None
        finally:
            await batches.aclose()
            gate.leave()

    def _complete(self, i: int, piece: Piece) -> bool:
        """Whether an answer that a text or token of the request's ended is one of its form."""
        constraint = self.asks[i].constraint
        return constraint is None or constraint.accepts("".join(self._said[i]))

    def _ended(self, i: int, finish: str, seconds: float) -> None:
        metrics, name = self.metrics, self.loaded.spec.name
        metrics.whole.labels(name).observe(seconds)
        metrics.success.labels(name, finish).inc()
        metrics.n_prompt.labels(name).observe(len(self.asks[i].request.ids))
        metrics.n_generated.labels(name).observe(self.n_generated[i])

    def _read(self, i: int, tokens: Sequence[Token], text: StoppingText) -> Piece:
        """What some tokens say."""
        if len(tokens) == 1 and (token := tokens[0]).finish is None and token.id is not None:
            self.n_generated[i] += 1  # as it nearly always is
            self.line.tokens(1)
            shown = text.push(token.id)
            if self.asks[i].may_be_cut:
                self._said[i].append(shown)
            return Piece(shown, [*tokens], "stop" if text.found is not None else None, [shown])
        piece = Piece("")
        self._read_all(i, tokens, text, piece)
        piece.text = "".join(piece.texts)
        if self.asks[i].may_be_cut:
            self._said[i].append(piece.text)
        return piece

    def _read_all(
        self, i: int, tokens: Sequence[Token], text: StoppingText, piece: Piece
    ) -> None:  # fmt: skip
        ids = [token.id for token in tokens if token.id is not None]
        self.line.tokens(len(ids))
        if len(ids) == len(tokens) and tokens[-1].finish != "stop" and not self.asks[i].by_token:
            whole = text.push_all(ids)  # finish: of the last one alone
            if whole is not None:
                self.n_generated[i] += len(ids)
                piece.texts.append(whole)
                piece.tokens.extend(tokens)
                if (finish := tokens[-1].finish) is not None:
                    piece.texts.append(text.flush())
                    piece.finish = finish
                return
        for token in tokens:
            if token.finish == "error":
                raise self._error(token)
            if token.id is not None:
                self.n_generated[i] += 1
            if token.id is not None and token.finish != "stop":
                piece.texts.append(text.push(token.id))
                piece.tokens.append(token)
                if text.found is not None:
                    piece.finish = "stop"
                    return
            if token.finish is not None:
                piece.texts.append(text.flush())
                piece.finish = token.finish

    def _error(self, token: Token) -> ApiError:
        name, error = self.loaded.spec.name, token.error
        if isinstance(error, ConstraintError):
            self.metrics.errors.labels(name, "constraint").inc()
            return ApiError(400, str(error), param=str(error).partition(":")[0],
                            code="constraint_failed")  # fmt: skip
        if not isinstance(error, LogitsError):
            self.metrics.errors.labels(name, "internal").inc()
            log.error("request %s failed", self.exchange.id, exc_info=error)
            return ApiError(500, "an internal error; the log has it", kind="server_error")
        self.metrics.errors.labels(name, "logits").inc()
        return ApiError(500, "the model's logits are not finite", kind="server_error",
                        code="not_finite")  # fmt: skip


def _with_processor(ask: Ask, tokenizer: Any) -> Request:
    n_prompt = len(ask.request.ids)
    processor: Any = None
    if ask.constraint is not None:
        processor = ask.constraint.processor(n_prompt)
    if (bound := ask.bound()) is not None:
        bound.inner, processor = processor, bound
    if ask.min_tokens:
        ends = {*tokenizer.eog_ids, *ask.request.stop}
        processor = MinTokens(n_prompt + ask.min_tokens, sorted(ends), processor)
    return replace(ask.request, processor=processor) if processor is not None else ask.request


def _decoder(loaded: Loaded, shown: frozenset[int]) -> TextStream:
    """The tokenizer's stream, in which some control tokens show."""
    pieces, tokenizer = loaded.pieces, loaded.tokenizer
    if not shown:
        return TextStream(pieces.__getitem__)

    def piece(token: int) -> bytes:
        data: bytes = tokenizer.piece(token) if token in shown else pieces[token]
        return data

    return TextStream(piece)
