"""JSON schemas: every answer validates, or the schema was refused up front."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from serving import Running

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is missing")

STRING: list[Any] = [
    {"type": "string", "maxLength": 5},
    {"type": "string", "minLength": 3, "maxLength": 6},
    {"type": "string", "pattern": "^[a-c]{2,4}$"},
    {"type": "string", "pattern": "^(ab|cd)+$", "maxLength": 8},
    {"enum": ["red", "green", "blue"]},
    {"const": "only this"},
    {"const": 'quote " backslash \\ \u00e9 \U0001f600 \n'},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "ipv6"},
]
NUMBER: list[Any] = [
    {"type": "integer", "minimum": 0, "maximum": 9},
    {"type": "integer", "minimum": -12, "maximum": 345},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    {"type": "integer", "minimum": 0, "maximum": 99, "multipleOf": 7},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"enum": [1, 2.5, -3]},
    {"const": 7},
    {"type": "integer", "minimum": 1000000, "maximum": 1000003},
]
OTHER: list[Any] = [
    {"type": "boolean"},
    {"type": "null"},
    {"enum": [None, True, 1, "x", [1], {"a": 2}]},
    {"type": ["boolean", "null"]},
    {"anyOf": [{"type": "boolean"}, {"const": "maybe"}]},
    {"oneOf": [{"type": "boolean"}, {"type": "null"}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]},
]
# Refused or obeyed, one of the two: no answer may come out otherwise.
HARD: list[Any] = [
    {"not": {"type": "string"}}, {"uniqueItems": True, "type": "array"},
    {"if": {"type": "integer"}, "then": {"minimum": 3}, "else": {"type": "boolean"}},
    {"type": "object", "minProperties": 2}, {"type": "object", "maxProperties": 1},
    {"type": "object", "propertyNames": {"pattern": "^a"}},
    {"type": "object", "patternProperties": {"^x": {"type": "integer", "maximum": 9}},
     "additionalProperties": False, "maxProperties": 2},
    {"type": "array", "contains": {"const": 3}}, {"dependentRequired": {"a": ["b"]}},
    {"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}},
    {"unevaluatedProperties": False}, {"type": "array", "unevaluatedItems": False},
    {"$ref": "#/nowhere"}, {"$ref": "https://example.com/schema"}, {"type": "strange"},
    {"type": 5}, {"enum": []}, False, {"minimum": "x"}, {"pattern": "("},
    {"type": "string", "pattern": "(?=a)b"}, {"type": "string", "pattern": "(a)\\1"},
    {"type": "string", "format": "no-such-format"},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"type": "integer", "minimum": 5, "maximum": 4},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"oneOf": [{"minimum": 3}, {"maximum": 5}]},
    {"type": "string", "contentEncoding": "base64"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1000000},
    {"type": "string", "minLength": 1000000},
    {"type": "string", "pattern": "^(a{1,1000}){1,1000}$"},
    {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"type": "object", "required": ["a"], "additionalProperties": False},
    {"required": ["a", "b"], "type": "object", "properties": {"a": False}},
    {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 2},
    {"x-guidance": {"lenient": True}, "not": {"type": "string"}},
    {"x-guidance": {"coerce_one_of": True}, "oneOf": [{"minimum": 3}, {"maximum": 5}]},
]  # fmt: skip
BOUNDED_TEXT = {"type": "string", "maxLength": 4}
SHAPES: list[Any] = [
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": 1}], "items": False,
     "minItems": 2},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "object", "additionalProperties": False, "required": ["b"],
     "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, "c": BOUNDED_TEXT}},
    {"$defs": {"leaf": {"type": "boolean"}}, "type": "array", "maxItems": 2,
     "items": {"$ref": "#/$defs/leaf"}},
    {"$defs": {"node": {"type": "object", "additionalProperties": False, "required": ["v"],
                        "properties": {"v": {"type": "boolean"},
                                       "next": {"anyOf": [{"type": "null"},
                                                          {"$ref": "#/$defs/node"}]}}}},
     "$ref": "#/$defs/node"},
    {"title": "t", "description": "d", "default": 1, "examples": [2], "type": "boolean",
     "$comment": "c", "deprecated": True},
]  # fmt: skip


def made(n: int) -> list[Any]:
    """Schemas put together at random of those above."""
    rng, out = random.Random(0), []
    leaves = STRING + NUMBER + OTHER

    def value(depth: int) -> Any:
        kind = rng.random()
        if depth == 0 or kind < 0.45:
            return rng.choice(leaves)
        if kind < 0.6:
            return {"type": "array", "items": value(depth - 1), "maxItems": rng.randint(1, 3)}
        if kind < 0.7:
            return {"anyOf": [value(depth - 1) for _ in range(2)]}
        names = rng.sample(["a", "b b", "c\u00e9", 'd"', "e"], rng.randint(1, 3))
        return {"type": "object", "properties": {name: value(depth - 1) for name in names},
                "required": names[: rng.randint(0, len(names))],
                "additionalProperties": False}  # fmt: skip

    while len(out) < n:
        out.append(value(3))
    return out


SCHEMAS = [*STRING, *NUMBER, *OTHER, *SHAPES, *HARD, *made(136)]


def test_there_are_enough() -> None:
    assert len(SCHEMAS) >= 200


def check(server: Running, i: int, schema: Any) -> str:
    """ "refused", "cut" or "valid"."""
    if not isinstance(schema, dict):
        schema = {"properties": {"a": schema}, "required": ["a"], "type": "object"}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    body = {"messages": [{"role": "user", "content": "Hello"}], "response_format": form,
            "max_tokens": 48, "seed": i, "temperature": 1.0}  # fmt: skip
    status, headers, answer = server.post("/v1/chat/completions", body)
    if status == 400:
        assert answer["error"]["param"].startswith("response_format"), (schema, answer)
        return "refused"
    assert status == 200 and "warning" not in headers, (schema, answer)
    choice = answer["choices"][0]
    if choice["finish_reason"] == "length":
        return "cut"
    assert choice["finish_reason"] == "stop", (schema, answer)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    value = json.loads(choice["message"]["content"])
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(value)
    return "valid"


def test_every_answer_validates_or_was_refused(server: Running) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda x: check(server, *x), enumerate(SCHEMAS)))
    soft = [f for f, s in zip(found, SCHEMAS, strict=True) if not any(s is h for h in HARD)]
    assert soft.count("refused") == 0 and found.count("refused") >= 25
    assert soft.count("valid") > 0.55 * len(soft)  # numbers without end are cut


@pytest.mark.parametrize(
    "field",
    [
        {"structured_outputs": {"json": {"type": "boolean"}}},
        {"json_schema": {"type": "boolean"}},
        {"structured_outputs": {"choice": ["true", "false"]}},
        {"structured_outputs": {"regex": "true|false"}},
        {"structured_outputs": {"grammar": 'start: "true" | "false"'}},
        {"grammar": 'root ::= "true" | "false"'},
        {"response_format": {"type": "regex", "pattern": "(true|false)"}},
        {"response_format": {"type": "grammar", "grammar": 'start: "true" | "false"'}},
        {"response_format": {"type": "grammar", "syntax": "gbnf",
                             "grammar": 'root ::= "true" | "false"'}},
    ],
    ids=str,
)  # fmt: skip
def test_every_way_to_ask_for_a_form(server: Running, field: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, **field}
    status, _, answer = server.post("/v1/chat/completions", body)
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"] in ("true", "false")
    text = {"prompt": "Once", "max_tokens": 20, **field}
    assert server.post("/v1/completions", text)[2]["choices"][0]["text"] in ("true", "false")


def test_a_grammar_that_explodes_ends_its_own_request_alone(server: Running) -> None:
    """Ambiguous grammars cost more with every token: the request ends, others do not notice."""
    bomb = "start: a\n" + "\n".join(
        f"{c}: {n} {n} | {n}" for c, n in zip("abcdefgh", "bcdefghi", strict=True)
    )
    bomb += '\ni: "x" | "x" i | i "x" |'
    body = {"prompt": "Once", "max_tokens": 200, "structured_outputs": {"grammar": bomb}}
    plain = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}
    alone = server.post("/v1/completions", plain)[2]["choices"]
    with ThreadPoolExecutor(4) as pool:
        bombs = [pool.submit(server.post, "/v1/completions", body) for _ in range(2)]
        others = [pool.submit(server.post, "/v1/completions", plain) for _ in range(2)]
        assert all(o.result()[2]["choices"] == alone for o in others)
        for b in bombs:
            status, _, answer = b.result()
            assert status in (200, 400)
            if status == 400:
                assert answer["error"]["param"].startswith("structured_outputs")
