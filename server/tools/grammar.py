"""The grammar of an answer that may, or must, call functions."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from gguflow.server.constraints import Constraint, Vocabulary, json_schema, lark, with_options
from gguflow.server.errors import ApiError, refused
from gguflow.server.schema.chat import Tool

from .formats import ToolFormat

FIELD = "tools"
_MARK = re.compile(r"<\|?/?[A-Za-z_]+\|?>|\[[A-Z_]+\]")


def schemas(
    tools: Sequence[Tool], vocabulary: Vocabulary
) -> tuple[list[dict[str, Any]], list[str]]:
    """The schema of each tool's arguments, and the fields of those that are only hints.

    A strict tool's schema that cannot be obeyed is refused; one that was given as a hint becomes
    any object, and is named. Raises ApiError.
    """
    found, hints = [], []
    for i, tool in enumerate(tools):
        field = f"tools.{i}.function.parameters"
        schema = {"type": "object", **(tool.function.parameters or {})}
        if schema["type"] != "object":
            raise refused(field, "arguments are an object")
        try:
            vocabulary.check(json_schema(schema, field))
        except ApiError:
            if tool.function.strict:
                raise
            schema = {"type": "object"}
            hints.append(field)
        found.append(schema)
    return found, hints


def tool_grammar(
    form: ToolFormat,
    names: Sequence[str],
    arguments: Sequence[dict[str, Any]],
    vocabulary: Vocabulary,
    *,
    required: bool,
    parallel: bool,
    answer: dict[str, Any] | None = None,
) -> Constraint:
    """Text or calls, or calls alone where they are required.

    answer: the JSON schema of an answer that is no call, in place of any text.
    """
    calls = " | ".join(f"call_{i}" for i in range(len(names)))
    more = f"({_text(form.separator, vocabulary)} ({calls}))*" if parallel else ""
    tail = _text(form.last, vocabulary)
    rules = [
        f"call_{i}: {_text(name + form.mid, vocabulary)} %json {json.dumps(with_options(schema))}"
        for i, (name, schema) in enumerate(zip(names, arguments, strict=True))
    ]
    body = f"({calls}) {more} {tail}"
    first = _text(form.first, vocabulary)
    if required:
        rules.append(f"start: {first} {body}")
    elif answer is not None:
        rules += [
            f"start: answer | {first} {body}",
            f"answer: %json {json.dumps(with_options(answer))}",
        ]
    else:
        rules += _after_text(form.first, body, vocabulary)
    return lark("%llguidance {}\n" + "\n".join(rules), FIELD)


def _after_text(first: str, body: str, vocabulary: Vocabulary) -> list[str]:
    """Any text, in which calls begin where `first` does."""
    mark = _special(first, vocabulary)
    if mark is not None:  # a token that text cannot hold
        text, token = mark
        rest = _text(first[len(text) :], vocabulary)
        return [f"start: TEXT | TEXT <[{token}]> {rest} {body}", r"TEXT: /(.|\n)*/"]
    # A lazy lexeme ends as soon as it can: no text goes on behind the mark.
    trigger = first.partition("\n")[0]
    rest = _text(first[len(trigger) :], vocabulary)
    return [
        f"start: TEXT | head {rest} {body}",
        f"head[lazy]: TEXT {json.dumps(trigger)}",
        r"TEXT: /(.|\n)*/",
    ]


def _special(text: str, vocabulary: Vocabulary) -> tuple[str, int] | None:
    """The marker that a text begins with, where the vocabulary has it as a control token."""
    match = _MARK.match(text)
    if match is None:
        return None
    token = vocabulary.special_id(match[0])
    return None if token is None else (match[0], token)


def _text(text: str, vocabulary: Vocabulary) -> str:
    """A literal, with control tokens by their number."""
    parts, plain, at = [], "", 0
    while at < len(text):
        found = _special(text[at:], vocabulary)
        if found is None:
            plain, at = plain + text[at], at + 1
            continue
        if plain:
            parts.append(json.dumps(plain))
        parts.append(f"<[{found[1]}]>")
        plain, at = "", at + len(found[0])
    if plain:
        parts.append(json.dumps(plain))
    return " ".join(parts)


def markers(form: ToolFormat, vocabulary: Vocabulary) -> frozenset[int]:
    """Control tokens of a form, whose text has to show for calls to be read."""
    texts = _MARK.findall(form.first + form.mid + form.separator + form.last)
    ids = (vocabulary.special_id(text) for text in texts)
    return frozenset(i for i in ids if i is not None)
