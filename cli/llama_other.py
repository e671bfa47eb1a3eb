"""An option of llama.cpp that has no meaning of its own here."""

from __future__ import annotations

from gguflow.engine.dataclass import dataclass


@dataclass(frozen=True)
class Other:
    """flags: their names. values: how many words follow, "?" for one at most, "*" for any number.
    why: what is so instead; None where that is just what was asked for."""

    flags: str
    values: int | str
    why: str | None
