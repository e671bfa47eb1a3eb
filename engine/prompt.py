"""Prompts as token ids, and what is wrong with some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index


class ContextError(ValueError):
    """More tokens than the context holds."""


Prompt = str | Sequence[int]


def token_ids(ids: Iterable[int]) -> list[int]:
    """Token ids as a list of ints. Raises TypeError for what is not one row of whole numbers."""
    if isinstance(ids, str | bytes | bytearray | memoryview):
        raise TypeError(
            f"token ids must be whole numbers in a list or a 1-D array, not {_kind(ids)}"
        )
    try:
        return [index(t) for t in ids]
    except TypeError:
        raise TypeError("token ids must be whole numbers, in a list or a 1-D array") from None


def check_ids(ids: Sequence[int], n_ctx: int, n_vocab: int) -> None:
    """Raises ContextError for more tokens than the context holds, ValueError for ids outside the
    vocabulary."""
    if len(ids) > n_ctx:
        raise ContextError(
            f"the prompt has {len(ids)} tokens, the context {n_ctx}; raise `n_ctx` or shorten the "
            "prompt"
        )
    for t in ids:
        if not 0 <= t < n_vocab:
            raise ValueError(f"token id {t} is outside the vocabulary of {n_vocab}")


def check_prompt_type(prompt: object) -> None:
    """Raises TypeError for what is neither text nor a sequence that may hold token ids."""
    if isinstance(prompt, bytes | bytearray | memoryview | dict | int | float) or prompt is None:
        raise TypeError(f"a prompt is a str or a list of token ids, not {_kind(prompt)}")


def _kind(value: object) -> str:
    return type(value).__name__


def check_length(ids: Sequence[int], most: int) -> None:
    """Raises ValueError for a prompt without tokens, ContextError for more tokens than can be
    computed of one: of a model that reads it in both directions, where the first tokens see keys
    that the last ones make, as many as a run has."""
    if not len(ids):
        raise ValueError("the prompt has no tokens")
    if len(ids) > most:
        raise ContextError(
            f"{len(ids)} tokens: this model reads a prompt in both directions, all of it in one "
            f"run of at most {most}; raise `n_ubatch` and `n_batch`"
        )
