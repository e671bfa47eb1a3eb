"""The grammar of an answer that may, or must, call functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gguflow.engine.constraints.before import FINAL, NEXT, PREAMBLE, THOUGHTS, Before
from gguflow.engine.constraints.constraint import Constraint
from gguflow.engine.constraints.error import ConstraintRefused
from gguflow.engine.constraints.forms import json_schema
from gguflow.engine.constraints.vocabulary import Vocabulary
from gguflow.engine.constraints.writer import Specials, Writer, specials_in

from .arguments import NotWritable, gemma, kinds_of, tagged
from .formats import Tags, ToolFormat
from .readers import QUOTE, Kinds

FIELD = "tools"
ANY: dict[str, Any] = {"type": "object"}


class Function(Protocol):
    """A function that may be called. strict: whether its schema is more than a hint."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> dict[str, Any] | None: ...
    @property
    def strict(self) -> bool | None: ...


def schemas(
    functions: Sequence[Function], vocabulary: Vocabulary, form: ToolFormat
) -> tuple[list[dict[str, Any]], list[str]]:
    """The schema of each function's arguments, and the fields of those that are only hints.

    A strict schema that cannot be obeyed is refused; one that was given as a hint becomes
    any object, and is named. Raises ConstraintRefused.
    """
    found, hints = [], []
    for i, function in enumerate(functions):
        field = f"tools.{i}.function.parameters"
        schema = {"type": "object", **(function.parameters or {})}
        if schema["type"] != "object":
            raise ConstraintRefused(field, "arguments are an object")
        try:
            vocabulary.check(json_schema(schema, field))
            if form.arguments != "json":
                w = Writer(vocabulary)
                vocabulary.check(w.constraint(_arguments(w, form, schema), field))
        except (ConstraintRefused, NotWritable) as error:
            if function.strict:
                if isinstance(error, ConstraintRefused):
                    raise
                why = "the model's form of calls cannot be held to this schema"
                raise ConstraintRefused(field, why, "constraint_refused") from None
            schema = ANY
            hints.append(field)
        found.append(schema)
    return found, hints


def kinds(
    form: ToolFormat, names: Sequence[str], arguments: Sequence[dict[str, Any]]
) -> Mapping[str, Kinds]:
    """How the values of arguments stand, by function, where that does not show."""
    if not isinstance(form.arguments, Tags):
        return {}
    return {name: kinds_of(schema) for name, schema in zip(names, arguments, strict=True)}


def _arguments(w: Writer, form: ToolFormat, schema: dict[str, Any]) -> str:
    """Raises NotWritable."""
    if isinstance(form.arguments, Tags):
        return tagged(w, form.arguments, schema)
    return gemma(w, schema) if form.arguments == "gemma" else w.json(schema)


def tool_grammar(
    form: ToolFormat,
    names: Sequence[str],
    arguments: Sequence[dict[str, Any]],
    vocabulary: Specials,
    *,
    required: bool,
    parallel: bool,
    answer: dict[str, Any] | bool | None = None,
    before: Before | None = None,
) -> Constraint:
    """Text or calls, or calls alone where they are required.

    answer: the JSON schema of an answer that is no call, in place of any text. before: thoughts
    that come first.
    """
    w = Writer(vocabulary)
    calls = [
        w.rule(f"{w.text(name + form.mid)} {_arguments(w, form, schema)}".rstrip())
        for name, schema in zip(names, arguments, strict=True)
    ]
    one = w.rule(" | ".join(calls))
    more = w.rule(f"{w.text(form.separator)} {one}") + "*" if parallel and form.parallel else ""
    body = f"{one} {more} {w.text(form.last)}".strip()
    if form.channels:
        return w.constraint(_channels(w, form, body, required, answer), FIELD)
    rest = w.text(form.first[len(form.trigger) :])
    thoughts = "" if before is None else before.written(w) + " "
    if required:
        start = f"{thoughts}{w.text(form.first)} {body}"
    elif answer is not None:
        start = f"{thoughts}({w.json(answer)} | {w.text(form.first)} {body})"
    else:
        # Thoughts that were not begun for the model are text as any other.
        thoughts = thoughts if before is not None and before.opened else ""
        start = f"{thoughts}(TEXT | {w.until(form.trigger)} {rest} {body})"
    return w.constraint(start, FIELD)


def _channels(
    w: Writer, form: ToolFormat, body: str, required: bool, answer: dict[str, Any] | bool | None
) -> str:
    said = w.rule(f"({w.text(THOUGHTS)} | {w.text(PREAMBLE)}) {w.until(NEXT)}")
    call = w.rule(f"{w.text(form.first)} {body}")
    if required:
        return f"{said}* {call}"
    final = w.rule(f"{w.text(FINAL)} {'TEXT' if answer is None else w.json(answer)}")
    return f"{said}* ({call} | {final})"


def markers(form: ToolFormat, vocabulary: Specials) -> frozenset[int]:
    """Control tokens of a form, whose text has to show for calls to be read."""
    text = form.first + form.mid + form.separator + form.last
    if isinstance(form.arguments, Tags):
        text += form.arguments.open + form.arguments.mid + form.arguments.close
    elif form.arguments == "gemma":
        text += QUOTE
    return frozenset(specials_in(vocabulary, text))
