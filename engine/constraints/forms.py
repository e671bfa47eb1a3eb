"""What constraints are made of: JSON schemas, regular expressions, grammars, choices."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from .constraint import MAX_SOURCE, Constraint
from .error import ConstraintRefused
from .larks import check_lark
from .patterns import check_pattern

MAX_DEPTH = 64  # levels of a schema
# Of a GBNF grammar: the converter goes over all rules once for each that has others before it.
MOST_RULES = 1000
# As the converter tells them, but in one pass: its own search begins anew at each empty line.
_LARK = re.compile(r"(?m)^[^\S\n]*(?:%llguidance\b|start\s*:)")
# Space between JSON's tokens is bounded, as in llama.cpp: a model may well write line breaks until
# its tokens are used up. What else a schema may say to llguidance here would weaken it.
_JSON = {"whitespace_pattern": r" |\n{1,2}[ \t]{0,20}", "coerce_one_of": False, "lenient": False}


def json_schema(schema: dict[str, Any] | bool, field: str) -> Constraint:
    """JSON of a schema. Keywords that llguidance does not know are refused, not ignored."""
    _check_depth(schema, field)
    try:
        text = json.dumps(schema)
    except (TypeError, ValueError) as error:  # objects of Python that JSON has no form for
        raise ConstraintRefused(field, f"no JSON: {error}") from None
    _check_size(text, field, "schema")
    grammar = {"grammars": [{"json_schema": with_options(schema)}]}
    return Constraint(json.dumps(grammar), field, schema)


def with_options(schema: dict[str, Any] | bool) -> dict[str, Any] | bool:
    """A schema with this project's rules for llguidance."""
    return {**schema, "x-guidance": _JSON} if isinstance(schema, dict) else schema


def json_object(field: str) -> Constraint:
    """Any JSON object."""
    return json_schema({"type": "object"}, field)


def regex(pattern: str, field: str) -> Constraint:
    """Text that a pattern matches whole."""
    check_pattern(pattern, field)
    return Constraint(LLMatcher.grammar_from_regex(pattern), field)


def lark(text: str, field: str) -> Constraint:
    """Text of a Lark grammar."""
    _check_size(text, field, "grammar")
    return _checked(text, field)


def gbnf(text: str, field: str) -> Constraint:
    """Text of one of llama.cpp's grammars, or of a Lark grammar, which shows."""
    _check_size(text, field, "grammar")
    if _LARK.search(text):
        return _checked(text, field)
    if text.count("::=") > MOST_RULES:
        raise ConstraintRefused(field, f"more than {MOST_RULES} rules")
    try:
        converted = gbnf_to_lark(text)
    except Exception as error:  # a converter of others' text: it may raise anything
        raise ConstraintRefused(field, f"no GBNF grammar: {str(error)[:200]}") from None
    return _checked(converted, field)


def _check_size(text: str, field: str, what: str) -> None:
    if len(text) > MAX_SOURCE:
        raise ConstraintRefused(field, f"the {what} is larger than {MAX_SOURCE} characters")


def _checked(text: str, field: str) -> Constraint:
    check_lark(text, field, _check_depth)
    return Constraint(LLMatcher.grammar_from_lark(text), field)


def choice(options: Sequence[str], field: str) -> Constraint:
    """One of some texts."""
    quoted = " | ".join(json.dumps(o, ensure_ascii=True) for o in options)
    return Constraint(LLMatcher.grammar_from_lark(f"start: {quoted}"), field)


def _check_patterns(schema: dict[Any, Any], field: str, where: str) -> None:
    found, own = schema.get("patternProperties"), schema.get("x-guidance")
    patterns = (schema.get("pattern"), *(found if isinstance(found, dict) else ()),
                *(own.values() if isinstance(own, dict) else ()))  # fmt: skip
    for pattern in patterns:
        if isinstance(pattern, str):
            check_pattern(pattern, field, where)


def _check_depth(value: Any, field: str, where: str = "") -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                _check_patterns(item, field, where)
                below += item.values()
            elif isinstance(item, list):
                below += item
        if not below:
            return
        level = below
    raise ConstraintRefused(field, f"{where}more than {MAX_DEPTH} levels")
