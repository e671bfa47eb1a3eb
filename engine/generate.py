"""From what users ask of a model to requests, and from tokens to pieces of text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from gguflow.engine.constraints.option import ConstraintFields, take_constraint
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.piece import FinishReason, Piece, Pieces, Timings
from gguflow.engine.prompt import Prompt, check_prompt_type, token_ids
from gguflow.engine.sampling import SamplerFields, SamplerSettings
from gguflow.engine.serving.host_sampling import Choice, check_extras
from gguflow.engine.serving.request import (
    EmbedRequest,
    LogitsProcessor,
    Pooling,
    Request,
    Token,
)
from gguflow.engine.session import Session
from gguflow.engine.text import StoppingText, StopStrings
from gguflow.models.base import ModelError

if TYPE_CHECKING:
    from gguflow.engine.constraints.constraint import Constraint
    from gguflow.engine.constraints.vocabulary import Checked
    from gguflow.engine.model import Model

FIELDS = frozenset(SamplerFields.__annotations__)  # of the sampler
MOST_TEXTS = 16  # that `embed` runs together


class GenerateOptions(SamplerFields, ConstraintFields, total=False):
    """What generations take as keyword arguments: fields of `SamplerSettings`, and

    stop: a string, or several, that end the text and are no part of it; None for none. logprobs:
    how many of the most likely tokens to give with each, besides its own probability; None for
    neither. logit_bias: added to the logits of some token ids. logits_processor: called with the
    ids so far and the logits of the next token, float32 [n_vocab], which it changes in place.

    At most one form that the text is held to, by llguidance (`pip install 'gguflow[constraints]'`),
    after the logits_processor: json_schema: JSON of a schema; True for any, a class for its
    `model_json_schema`, as pydantic's have. grammar: llama.cpp's GBNF. regex: what a regular
    expression matches whole. choices: one of some texts. The text ends when it is complete; one
    that is cut (`finish_reason` "length") need not be. A form that cannot be obeyed raises
    ConstraintRefused before anything is generated, one that takes too long ConstraintError.
    """

    stop: str | Sequence[str] | None
    logprobs: int | None
    logit_bias: Mapping[int, float]
    logits_processor: LogitsProcessor | None


@dataclass(frozen=True)
class Asked:
    """A request and the strings that end its text. show: control tokens whose text shows.
    constraint: that the text is still to be held to (`within`). accepts: whether a text is complete
    by the one that it is held to."""

    request: Request
    stops: StopStrings
    show: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    accepts: Callable[[str], bool] | None = None


def prompt_ids(model: Model, prompt: Prompt) -> list[int]:
    """A prompt's tokens. Raises TypeError for what is neither text nor token ids."""
    check_prompt_type(prompt)
    ids = model.tokenizer.encode(prompt) if isinstance(prompt, str) else token_ids(prompt)
    model.check_prompt(ids)
    return ids


def ask(
    model: Model,
    ids: Sequence[int],
    max_tokens: int,
    settings: SamplerSettings | None,
    stop_at_eog: bool,
    **options: Unpack[GenerateOptions],
) -> Asked:
    """A request for the tokens after `ids`, its constraint not compiled yet. Raises TypeError and
    ValueError naming what is wrong with it, ImportError for a package that it needs."""
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int | np.integer):
        raise TypeError(f"max_tokens {max_tokens!r}: expected a whole number, -1 for no limit")
    if max_tokens < -1:
        raise ValueError(f"max_tokens {max_tokens}: expected -1 or more")
    if settings is not None and not isinstance(settings, SamplerSettings):
        raise TypeError(f"settings {settings!r}: expected SamplerSettings")
    given: dict[str, Any] = dict(options)
    constraint = take_constraint(given)
    if constraint is not None and not stop_at_eog:
        raise ValueError(f"stop_at_eog: with {constraint.field} a text ends when its form does")
    stop = given.pop("stop", None)
    extras = {
        "logprobs": given.pop("logprobs", None),
        "logit_bias": given.pop("logit_bias", {}),
        "processor": given.pop("logits_processor", None),
    }
    if extras["processor"] is not None and not callable(extras["processor"]):
        raise TypeError(
            f"logits_processor {extras['processor']!r}: expected a function of ids and logits"
        )
    for name in given:
        if name not in FIELDS:
            raise TypeError(f"no option is called {name!r}; there are {_names()}")
    chosen = replace(settings or SamplerSettings(), **given)
    eog = frozenset(model.tokenizer.eog_ids) if stop_at_eog else frozenset()
    request = Request(ids, int(max_tokens), chosen, eog, **extras)
    check_extras(request, model.hp.n_vocab)
    stops = () if stop is None else [stop] if isinstance(stop, str) else stop
    return Asked(request, StopStrings(stops), constraint=constraint)


def compiled(model: Model, asked: Asked) -> Asked:
    """The same, held to its constraint if it has one. Raises ConstraintRefused. Takes up to a
    second for a constraint, and a model's first one more."""
    if asked.constraint is None:
        return asked
    return within(asked, model.vocabulary.check(asked.constraint))


def within(asked: Asked, form: Checked) -> Asked:
    """The same, held to a form."""
    from gguflow.engine.constraints.in_turn import InTurn  # llguidance

    request, mask = asked.request, form.processor(len(asked.request.ids))
    own = request.processor
    both = mask if own is None else InTurn(own, mask, form.field)
    request = replace(request, processor=both)
    return replace(asked, request=request, constraint=None, accepts=form.accepts)


def session_of(model: Model, session: Session | None) -> Session:
    """The session to use: the model's own for None. Raises TypeError for what is none, ValueError
    for another model's: it would go on with the other's weights."""
    if session is None:
        return model.session
    if not isinstance(session, Session):
        raise TypeError(f"session {session!r}: expected one of `new_session`")
    own = session.model
    if own.weights is not model.weights and own.source is not model.source:
        raise ValueError(f"session: it is another model's, of {own.source.path}")
    return session


def _names() -> str:
    own = set(GenerateOptions.__annotations__) - FIELDS
    return ", ".join([*sorted(own), *SamplerFields.__annotations__])


def stream(session: Session, asked: Asked) -> Iterator[Piece]:
    """The pieces of one generation on a session."""
    pieces = _pieces(session.model, asked)
    timings = Timings()
    finish: FinishReason = "length"
    choices = session.choices(asked.request, timings)
    while not pieces.is_stopped:
        try:
            choice = next(choices)
        except StopIteration as end:
            finish = end.value
            break
        if piece := pieces.push(choice):
            yield piece
    choices.close()
    yield pieces.end(finish, timings)


def _pieces(model: Model, asked: Asked) -> Pieces:
    text = StoppingText(model.tokenizer.stream(show=asked.show), asked.stops)
    return Pieces(text, asked.accepts)


class Reader:
    """The pieces of one request of an engine, from its tokens. name: what errors call it."""

    def __init__(self, model: Model, asked: Asked, name: str) -> None:
        self._where = f"{model.source.path}: {name}"
        self._pieces = _pieces(model, asked)
        self._timings = Timings(n_prompt=len(asked.request.ids))
        self._began = self._first = time.perf_counter()
        self.is_over = False

    def read(self, token: Token) -> list[Piece]:
        """What a token completes; with the last one, or at a stop string, the last piece. Raises
        what a processor raised, and ModelError for logits that are not finite."""
        if self.is_over:
            return []
        if token.finish == "error":
            if token.error is not None and not isinstance(token.error, ValueError):
                raise token.error
            raise ModelError(f"{self._where}: {token.error}") from token.error
        found = []
        t, now = self._timings, time.perf_counter()
        if token.id is not None and token.finish != "stop":
            if not t.n_generated:
                self._first, t.prompt_s = now, now - self._began
            t.n_generated += 1
            t.n_runs, t.generate_s = t.n_generated - 1, now - self._first
            choice = Choice(token.id, token.logprob, token.top_logprobs)
            if piece := self._pieces.push(choice):
                found.append(piece)
        if token.finish is not None or self._pieces.is_stopped:
            self.is_over = True
            finish: FinishReason = "stop" if token.finish == "stop" else "length"
            found.append(self._pieces.end(finish, t))
        return found


def stream_many(
    model: Model, asked: Sequence[Asked], n_seqs: int | None
) -> Iterator[tuple[int, Piece]]:
    """The pieces of many generations together, each with its number."""
    from gguflow.engine.serving.engine import Engine  # one sequence needs none

    engine = Engine(model, n_seqs)
    readers = [Reader(model, a, f"prompt {i}") for i, a in enumerate(asked)]
    ids = [engine.add(a.request) for a in asked]
    while engine.has_work:
        for token in engine.step():
            reader = readers[token.request]
            for piece in reader.read(token):
                yield token.request, piece
            if reader.is_over and token.finish is None:
                engine.cancel(ids[token.request])


def embed(
    model: Model, given: Prompt | Sequence[Prompt], pooling: Pooling, normalize: bool
) -> NDArray[np.float32]:
    """A vector for each text, or for the only one: f32 [n, n_embd]."""
    from gguflow.engine.serving.engine import Engine

    check_prompt_type(given)
    texts: Sequence[Any] = [given] if isinstance(given, str) else given
    found = np.zeros((len(texts), model.hp.n_embd), np.float32)
    ids = [prompt_ids(model, text) for text in texts]
    if not ids:
        return found
    o = model.options
    n_seqs = min(len(ids), MOST_TEXTS)
    n_rows = sum(sorted(-(-len(i) // 64) * 64 for i in ids)[-n_seqs:])
    engine = Engine(model.with_options(n_ctx=min(o.n_ctx, n_rows)), n_seqs, n_rows)
    for i in ids:
        engine.add(EmbedRequest(i, pooling))
    while engine.has_work:
        for token in engine.step():
            if token.error is not None:
                raise token.error
            assert token.embedding is not None
            found[token.request] = token.embedding
    if normalize:
        lengths = np.linalg.norm(found.astype(np.float64), axis=1, keepdims=True)
        found = (found / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return found
