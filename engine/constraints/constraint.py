"""A constraint as it is passed on: a grammar, and who asked for it."""

from __future__ import annotations

from typing import Any

from gguflow.engine.dataclass import dataclass

MAX_SOURCE = 500_000  # characters of a schema or grammar


@dataclass(frozen=True)
class Constraint:
    """A grammar in llguidance's form. field: who asked for it, for messages. schema: of JSON."""

    grammar: str
    field: str
    schema: dict[str, Any] | bool | None = None
