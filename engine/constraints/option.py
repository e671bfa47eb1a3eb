"""Constraints as the Python API has them: the options that ask for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

if TYPE_CHECKING:
    from .constraint import Constraint

PACKAGE = "needs llguidance: pip install 'gguflow[constraints]'"


class SchemaClass(Protocol):
    """A class that knows its JSON schema, as pydantic's models do."""

    def model_json_schema(self) -> Mapping[str, object]:
        """The schema of its objects."""


class ConstraintFields(TypedDict, total=False):
    """Options that hold a text to a form; at most one of them."""

    json_schema: Mapping[str, object] | bool | SchemaClass | None
    grammar: str | None
    regex: str | None
    choices: Sequence[str] | None


NAMES = (*ConstraintFields.__annotations__,)


def take_constraint(options: dict[str, Any]) -> Constraint | None:
    """The constraint that options ask for; its fields are taken out of them. Raises TypeError and
    ValueError by name, ConstraintRefused, and ImportError without llguidance."""
    given = {name: options.pop(name, None) for name in NAMES}
    asked = [name for name in NAMES if given[name] is not None]
    if not asked:
        return None
    if len(asked) > 1:
        raise ValueError(f"{asked[1]}: {asked[0]} asks for a form already")
    name, value = asked[0], given[asked[0]]
    value = _schema(value) if name == "json_schema" else _texts(name, value)
    return _made(name, value)


def _schema(value: Any) -> dict[str, Any] | bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, Mapping):
        own = getattr(value, "model_json_schema", None)
        value = own() if callable(own) else value
    if not isinstance(value, Mapping):
        raise TypeError(
            f"json_schema {value!r}: expected a mapping, a bool or a class with model_json_schema"
        )
    return dict(value)


def _texts(name: str, value: Any) -> str | list[str]:
    if name != "choices":
        if not isinstance(value, str):
            raise TypeError(f"{name} {value!r}: expected a string")
        return value
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise TypeError(f"choices {value!r}: expected a list of strings")
    if not all(isinstance(v, str) for v in value):
        raise TypeError(f"choices {value!r}: expected a list of strings")
    if not value:
        raise ValueError("choices: an empty list leaves nothing to say")
    return list(value)


def _made(name: str, value: Any) -> Constraint:
    try:
        from . import forms  # llguidance, which plain text does without
    except ImportError as error:
        raise lacking(name, error) from None
    if name == "json_schema":
        return forms.json_schema(value, name)
    if name == "grammar":
        return forms.gbnf(value, name)
    return forms.regex(value, name) if name == "regex" else forms.choice(value, name)


def lacking(name: str, error: ImportError) -> ImportError:
    """What to say when an option's package is not there."""
    return ImportError(f"{name} {PACKAGE}", name=error.name)
