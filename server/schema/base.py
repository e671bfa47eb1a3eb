"""Reading a request's JSON: strict types, errors that name the field, fields nobody knows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from math import isinf
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema

from gguflow.server.errors import ApiError, refused

MAX_NAMED = 20  # unknown fields that a warning lists
# Of a body. Each takes a kilobyte or more when it is read, and a body of a few megabytes has room
# for a million. As many messages as a conversation may have, each with a part, are 30,000.
MAX_NESTED = 50_000
_MARK = re.compile(rb'"([^"]*)"?(\s*:)?|[{\[]|[}\]]')


def _stop_at_first(schema: Any) -> None:
    """Every list and object of values ends at its first fault: one error is told, and a body of a
    few megabytes has room for millions, of a kilobyte each."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "dict"):
            schema["fail_fast"] = True
        for part in schema.values():
            _stop_at_first(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _stop_at_first(part)


class Body(BaseModel):
    """An object of a request. Fields it does not have are kept, to be named in a warning."""

    model_config = ConfigDict(
        extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=(),
        hide_input_in_errors=True,
    )  # fmt: skip

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_at_first(schema)
        return schema


B = TypeVar("B", bound=Body)


def parse(cls: type[B], data: bytes) -> B:
    """A request's body. Raises ApiError 400 that names the first field at fault."""
    _check_nested(data)
    try:
        body = cls.model_validate_json(data)
    except ValidationError as error:
        raise _refusal(error) from None
    # Of two fields of one name the last one counts, and what the first one asked for is dropped.
    # The reader before this one does not tell; this one tells, but takes JSON of any depth and
    # halves of characters. What is too deep or too long for it was refused, or has no names. Where
    # a field may be anything both take NaN, and numbers so large that they are infinity, of which
    # no answer could be made.
    with suppress(ValueError, RecursionError):
        json.loads(
            data, object_pairs_hook=_names, parse_constant=_no_number, parse_float=_finite
        )  # fmt: skip
    return body


def _check_nested(data: bytes) -> None:
    """Counts objects and lists before they are made. Most bodies have few brackets, texts and all;
    of the others those in texts do not count."""
    if data.count(b"{") + data.count(b"[") <= MAX_NESTED:
        return
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # a text ends at its next mark
    field, depth, n = b"", 0, 0
    for found in _MARK.finditer(plain):
        first = found[0][:1]
        if first == b'"':
            if depth == 1 and found[2]:
                field = found[1]
        elif first in b"{[":
            depth, n = depth + 1, n + 1
            if n > MAX_NESTED:
                name = field[:64].decode("utf-8", "replace") or "body"
                raise refused(name, f"the body has more than {MAX_NESTED} objects and lists")
        else:
            depth -= 1


def _no_number(text: str) -> None:
    raise ApiError(400, f"the body is not JSON: {text[:40]} is no number", code="invalid_json")


def _finite(text: str) -> None:
    if isinf(float(text)):
        _no_number(text)


def _names(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    seen = set[str]()
    for name, _ in pairs:
        if name in seen:
            raise refused(name[:64], "stands twice in one object")
        seen.add(name)


def _refusal(error: ValidationError) -> ApiError:
    """The deepest error: of a union's members, the one that was meant got furthest."""
    first = max(error.errors(include_url=False, include_input=False), key=_depth)
    if first["type"] == "json_invalid":
        reason = str(first.get("ctx", {}).get("error", "no JSON"))
        return ApiError(400, f"the body is not JSON: {reason}", code="invalid_json")
    path = ".".join(str(p) for p in _path(first["loc"])) or "body"
    return refused(path, first["msg"].removeprefix("Value error, "))


def _depth(error: Any) -> tuple[int, bool, bool]:
    kind = error["type"]
    # A list that is too long was meant as a list, where a text may stand, too.
    return len(_path(error["loc"])), kind != "extra_forbidden", not kind.endswith("_type")


def _path(loc: tuple[int | str, ...]) -> list[int | str]:
    """A place without pydantic's names of a union's members (`list[...]`, `str`, `Tool`)."""
    return [p for p in loc if isinstance(p, int) or p.isdigit() or _is_field(p)]


def _is_field(name: str) -> bool:
    return name.isidentifier() and not name[0].isupper() and name not in _MEMBERS


_MEMBERS = {"str", "int", "float", "bool", "constrained", "dict", "none"}


# Fields of forms: a format of another type that has one is not obeyed as if it had not.
_OF_FORMS = {"schema", "json_schema", "grammar", "pattern", "regex", "choice", "syntax", "value"}
# Fields that other servers, or other paths of this one, know and that say what an answer has to
# be: a request that has one is not answered as if it had not. With what to use instead.
_FORM = "structured_outputs or response_format does that"
_TEXT_FORM = "text.format does that"
_FOREIGN = {
    "functions": "tools does that", "function_call": "tool_choice does that",
    "guided_json": _FORM, "guided_regex": _FORM, "guided_choice": _FORM, "guided_grammar": _FORM,
    "regex": _FORM, "ebnf": _FORM, "structural_tag": _FORM, "choice": _FORM, "format": _FORM,
    "schema": _FORM, "response_schema": _FORM, "output_schema": _FORM,
    "response_format": _TEXT_FORM, "structured_outputs": _TEXT_FORM, "grammar": _TEXT_FORM,
    "json_schema": _TEXT_FORM, "bad_words": "logit_bias does that",
    "allowed_token_ids": "structured_outputs does that", "max_new_tokens": "max_tokens does that",
    "lora": "the model's name does that here", "n_predict": "max_tokens does that",
    "min_new_tokens": "min_tokens does that", "num_predict": "max_tokens does that",
    "stop_sequences": "stop does that", "stop_strings": "stop does that",
    "options": "its fields stand by themselves here",
    "chat_template": "the server's --chat-template-file does that",
    **dict.fromkeys(
        ("tools", "tool_choice", "stop", "n", "best_of", "echo", "suffix", "max_tokens",
         "max_completion_tokens", "logit_bias", "logprobs", "presence_penalty",
         "frequency_penalty", "prompt"),
        "this path has no such field",
    ),
    **dict.fromkeys(
        ("audio", "web_search_options", "documents", "images", "image_data", "t_max_predict_ms",
         "use_beam_search", "length_penalty", "prompt_logprobs", "n_probs",
         "truncate_prompt_tokens", "include_stop_str_in_output", "logits_processors",
         "negative_prompt", "return_token_ids", "return_tokens_as_token_ids"),
        "not supported",
    ),
}  # fmt: skip


def unknown_fields(body: BaseModel, at: str = "") -> Iterator[str]:
    """Paths of fields that no class knows. Raises ApiError for those that must not be dropped."""
    for name, value in (body.model_extra or {}).items():
        if not at and name in _FOREIGN and value not in (None, False, [], {}, ""):
            raise refused(name, _FOREIGN[name])
        if not at and (name, value) in (("skip_special_tokens", False), ("web_search_options", {})):
            raise refused(name, "not supported")
        if at.endswith("format.") and name in _OF_FORMS and value is not None:
            raise refused(at + name, "a format of this type has no such field")
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
