"""Requests as bytes. What a processor of logits is made of goes along; a tokenizer and its
vocabulary do not: a replica has its own, of the same file."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

from gguflow.engine.serving.request import EmbedRequest, Request, Token
from gguflow.server.constraints import Vocabulary

VOCABULARY, TOKENIZER = "vocabulary", "tokenizer"
Row = tuple[Any, ...]


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, tokenizer: Any) -> None:
        super().__init__(file, protocol=5)
        self._tokenizer = tokenizer

    def persistent_id(self, obj: Any) -> str | None:
        if obj is self._tokenizer:
            return TOKENIZER
        return VOCABULARY if isinstance(obj, Vocabulary) else None


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, here: Any) -> None:
        super().__init__(file)
        self._here = here

    def persistent_load(self, pid: Any) -> Any:
        return getattr(self._here, pid)


def pack(request: Request | EmbedRequest, tokenizer: Any) -> bytes:
    """A request, and what its processor was made from."""
    file = io.BytesIO()
    _Packer(file, tokenizer).dump(request)
    return file.getvalue()


def unpack(data: bytes, here: Any) -> Any:
    """The request for the model `here`, a `Loaded`. A constraint is compiled, which may take long.

    For bytes of `pack` only: they may say what is to be run.
    """
    return _Unpacker(io.BytesIO(data), here).load()


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
    return Token(key, id, index, finish, n_cached=n_cached)
