"""Prompts as token ids, and what is wrong with some."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index


class ContextError(ValueError):
    """More tokens than the context holds."""


def token_ids(ids: Iterable[int]) -> list[int]:
    """Token ids as a list of ints. Raises TypeError for what is not one row of whole numbers."""
    try:
        return [index(t) for t in ids]
    except TypeError:
        raise TypeError("token ids must be whole numbers, in a list or a 1-D array") from None
