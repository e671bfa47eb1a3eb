"""Requests on their way to a replica. What changes their logits was made for the tokenizer here: it
goes as what it was made from, and is made again with the replica's own, of the same file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gguflow.engine.constraints.constraint import Constraint
from gguflow.engine.constraints.masker import Masker
from gguflow.engine.constraints.thinking import Budget, Here, Thinking
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.serving.request import EmbedRequest, Request, Token
from gguflow.server.answer import MinTokens

Row = tuple[Any, ...]


class Recipe(Protocol):
    """What a processor of logits is made from."""

    def make(self, here: Here) -> Any:
        """The processor; a constraint is compiled, which may take up to a second."""


@dataclass(frozen=True)
class _Masker:
    constraint: Constraint
    n_prompt: int

    def make(self, here: Here) -> Masker:
        return here.vocabulary.check(self.constraint).processor(self.n_prompt)


@dataclass(frozen=True)
class _MinTokens:
    n_least: int
    ends: tuple[int, ...]
    inner: Recipe | None

    def make(self, here: Here) -> MinTokens:
        return MinTokens(self.n_least, self.ends, _made(self.inner, here))


@dataclass(frozen=True)
class _Budget:
    thinking: Thinking
    n_prompt: int
    ending: tuple[int, ...]
    inner: Recipe | None

    def make(self, here: Here) -> Budget:
        budget = Budget(self.thinking, here.tokenizer, self.n_prompt, self.ending)
        budget.inner = _made(self.inner, here)
        return budget


def _made(recipe: Recipe | None, here: Here) -> Any:
    return None if recipe is None else recipe.make(here)


def _recipe(processor: Any) -> Recipe | None:
    if processor is None:
        return None
    if isinstance(processor, Masker):
        return _Masker(*processor.made_from)
    if isinstance(processor, Budget):
        return _Budget(*processor.made_from, _recipe(processor.inner))
    if isinstance(processor, MinTokens):
        return _MinTokens(*processor.made_from, _recipe(processor.inner))
    raise TypeError(f"{type(processor).__name__} cannot go to another process")


@dataclass(frozen=True)
class Parted:
    """A request without its processor, and what that is made from."""

    request: Request | EmbedRequest
    recipe: Recipe | None = None

    def joined(self, here: Here) -> Request | EmbedRequest:
        """The request for the model of this process."""
        if self.recipe is None or isinstance(self.request, EmbedRequest):
            return self.request
        return replace(self.request, processor=self.recipe.make(here))


def part(request: Request | EmbedRequest) -> Parted:
    """Raises TypeError for a processor that is none of the server's."""
    if isinstance(request, EmbedRequest) or request.processor is None:
        return Parted(request)
    return Parted(replace(request, processor=None), _recipe(request.processor))


def row(key: int, token: Token) -> Row:
    """A token of the request `key` for the way back: short where nothing more is asked for."""
    if token.logprob is None and token.error is None and token.embedding is None:
        return key, token.id, token.index, token.finish, token.n_cached
    return key, token


def token_of(r: Sequence[Any]) -> Token:
    """The token of a row; its number is the replica's own."""
    if len(r) == 2:
        found: Token = r[1]
        return found
    key, id, index, finish, n_cached = r
    if finish is None and not n_cached:
        return Token.plain(key, id, index)
    return Token(key, id, index, finish, n_cached=n_cached)
