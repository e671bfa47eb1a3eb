"""Reading a request's JSON: strict types, errors that name the field, fields nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from gguflow.server.errors import ApiError, refused

MAX_NAMED = 20  # unknown fields that a warning lists


class Body(BaseModel):
    """An object of a request. Fields it does not have are kept, to be named in a warning."""

    model_config = ConfigDict(
        extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=(),
        hide_input_in_errors=True,
    )  # fmt: skip


B = TypeVar("B", bound=Body)


def parse(cls: type[B], data: bytes) -> B:
    """A request's body. Raises ApiError 400 that names the first field at fault."""
    try:
        return cls.model_validate_json(data)
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> ApiError:
    """The deepest error: of a union's members, the one that was meant got furthest."""
    first = max(error.errors(include_url=False, include_input=False), key=_depth)
    if first["type"] == "json_invalid":
        reason = str(first.get("ctx", {}).get("error", "no JSON"))
        return ApiError(400, f"the body is not JSON: {reason}", code="invalid_json")
    path = ".".join(str(p) for p in _path(first["loc"])) or "body"
    return refused(path, first["msg"].removeprefix("Value error, "))


def _depth(error: Any) -> tuple[int, bool]:
    return len(_path(error["loc"])), error["type"] != "extra_forbidden"


def _path(loc: tuple[int | str, ...]) -> list[int | str]:
    """A place without pydantic's names of a union's members (`list[...]`, `str`, `Tool`)."""
    return [p for p in loc if isinstance(p, int) or p.isdigit() or _is_field(p)]


def _is_field(name: str) -> bool:
    return name.isidentifier() and not name[0].isupper() and name not in _MEMBERS


_MEMBERS = {"str", "int", "float", "bool", "constrained", "dict", "none"}


def unknown_fields(body: BaseModel, at: str = "") -> Iterator[str]:
    """Paths of fields that no class knows."""
    for name in body.model_extra or {}:
        yield at + name
    for name in type(body).model_fields:
        yield from _unknown_in(getattr(body, name), at + name)


def _unknown_in(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from unknown_fields(value, at + ".")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            if isinstance(item, BaseModel | list):
                yield from _unknown_in(item, f"{at}.{i}")


def warning(fields: list[str]) -> str:
    """The value of a `Warning` header that names fields which had no effect."""
    named = ", ".join(_plain(f) for f in fields[:MAX_NAMED])
    if len(fields) > MAX_NAMED:
        named += f" and {len(fields) - MAX_NAMED} more"
    return f'299 gguflow "not used: {named}"'


def _plain(name: str) -> str:
    """A field's name as a header can hold it."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_-.") else "?" for c in name[:64])
    return kept or "?"
