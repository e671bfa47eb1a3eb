"""An option of llama.cpp that has no meaning of its own here."""

from __future__ import annotations

from typing import NamedTuple


class Other(NamedTuple):
    """flags: their names. values: how many words follow, "?" for one at most, "*" for any number.
    why: what is so instead; None where that is just what was asked for."""

    flags: str
    values: int | str
    why: str | None
