"""The form an answer must have: JSON, a schema, a grammar, a regular expression, a choice."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .base import Body

Grammar = Annotated[str, Field(min_length=1, max_length=500_000)]


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object. schema: llama-server's way to ask for one of a schema."""

    type: Literal["json_object"]
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class NamedSchema(Body):
    """A JSON schema as OpenAI wraps it. strict: the schema is always obeyed."""

    name: Annotated[str, Field(max_length=256)] = "schema"
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Body):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class GrammarFormat(Body):
    """Text of a grammar: Lark as llguidance reads it, or llama.cpp's GBNF."""

    type: Literal["grammar"]
    grammar: Grammar
    syntax: Literal["lark", "gbnf"] = "lark"


class RegexFormat(Body):
    """Text that a regular expression matches whole."""

    type: Literal["regex"]
    pattern: Grammar


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | GrammarFormat | RegexFormat,
    Field(discriminator="type"),
]


class StructuredOutputs(Body):
    """vLLM's `structured_outputs`: exactly one field."""

    json_: dict[str, Any] | None = Field(None, alias="json")
    regex: Grammar | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=4096)] | None = None
    grammar: Grammar | None = None
    json_object: bool | None = None


class OutputFields(Body):
    """The fields that ask for a form; at most one of them may be given."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    grammar: Grammar | None = None
    json_schema: dict[str, Any] | None = None
