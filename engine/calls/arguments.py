"""Grammars of arguments that are not JSON: in tags, or Gemma's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gguflow.engine.constraints.writer import Writer

from .formats import Tags
from .readers import QUOTE, Kind

_NOTES = {"title", "description", "default", "examples", "$schema", "$comment", "deprecated"}
_OBJECT = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
_KEY = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"


class NotWritable(Exception):
    """A schema that this form of arguments cannot be held to."""


def kinds_of(schema: dict[str, Any]) -> dict[str, Kind]:
    """How the values of an object's properties stand in tags."""
    return {name: _kind(s) for name, s in (schema.get("properties") or {}).items()}


def _kind(schema: Any) -> Kind:
    if _texts(schema) is not None:
        return "text"
    if isinstance(schema, dict) and schema.get("type") == "string":
        return "text" if not schema.keys() - _NOTES - {"type"} else "json"
    return "json"


def _texts(schema: Any) -> list[str] | None:
    """The texts that are all a value may be."""
    if not isinstance(schema, dict) or schema.keys() - _NOTES - {"type", "enum", "const"}:
        return None
    found = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(found, list) or not found or not all(isinstance(v, str) for v in found):
        return None
    return found if schema.get("type", "string") == "string" else None


def _object(schema: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Properties and the names of those that must be there. Raises NotWritable."""
    if schema.keys() - _OBJECT - _NOTES or schema.get("type", "object") != "object":
        raise NotWritable
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if not isinstance(properties, dict) or not isinstance(required, Sequence):
        raise NotWritable
    if not set(required) <= properties.keys():
        raise NotWritable
    return properties, set(required)


def tagged(w: Writer, tags: Tags, schema: dict[str, Any]) -> str:
    """An object's properties in tags, in the schema's order. Raises NotWritable."""
    properties, required = _object(schema)
    shared = {k: schema[k] for k in ("$defs", "definitions") if k in schema}
    out = []
    for name, given in properties.items():
        head = w.text(tags.open + name + tags.mid)
        texts = _texts(given)
        if texts is not None:
            value = "(" + " | ".join(json.dumps(t + tags.close) for t in texts) + ")"
        elif _kind(given) == "text":
            value = w.until(tags.close)
        else:
            inner = {**given, **shared} if isinstance(given, dict) else given
            value = f"{w.json(inner)} {w.text(tags.close)}"
        out.append(f"{w.rule(f'{head} {value}')}{'' if name in required else '?'}")
    if not properties and schema.get("additionalProperties", True) is not False:
        one = w.rule(
            f"{w.text(tags.open)} {_KEY} {w.text(tags.mid)} {w.until(tags.close)}"
        )  # any names, any texts
        out.append(f"{one}*")
    return " ".join(out)


def gemma(w: Writer, schema: dict[str, Any]) -> str:
    """An object as Gemma writes it. Raises NotWritable."""
    return _Gemma(w).value(schema)


class _Gemma:
    def __init__(self, w: Writer) -> None:
        self._w = w
        self._any = ""

    def value(self, schema: Any) -> str:
        """A value of a schema."""
        if schema is True or schema == {}:
            return self.any()
        if not isinstance(schema, dict):
            raise NotWritable
        texts = _texts(schema)
        if texts is not None:
            return "(" + " | ".join(self._w.text(QUOTE + t + QUOTE) for t in texts) + ")"
        kind, keys = schema.get("type"), schema.keys() - _NOTES - {"type"}
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema)
        if kind == "array" and not keys - {"items"}:
            one = self.value(schema.get("items", True))
            return f'"[" ({one} ("," {one})*)? "]"'
        if kind == "string" and not keys:
            return self._string()
        if kind in ("integer", "number", "boolean", "null"):
            return self._w.json(schema)
        raise NotWritable

    def _string(self) -> str:
        return f"{self._w.text(QUOTE)} {self._w.until(QUOTE)}"

    def _object(self, schema: dict[str, Any]) -> str:
        properties, required = _object(schema)
        if not properties and schema.get("additionalProperties", True) is not False:
            self.any()
            return f"{self._any}o"
        # From the last property on: what may follow a first one, and what where none was before.
        more, first = self._w.rule('""'), self._w.rule('""')
        for name, given in reversed(properties.items()):
            pair = self._w.rule(f"{json.dumps(name + ':')} {self.value(given)}")
            skip = name not in required
            first = self._w.rule(f"{pair} {more}" + (f" | {first}" if skip else ""))
            more = self._w.rule(f'"," {pair} {more}' + (f" | {more}" if skip else ""))
        return f'"{{" {first} "}}"'

    def any(self) -> str:
        """Any value."""
        if not self._any:
            name = self._any = self._w.rule('""')
            self._w.rules.pop()
            scalar = self._w.json({"type": ["number", "boolean", "null"]})
            self._w.rules += [
                f"{name}: {name}o | {name}a | {scalar} | {self._string()}",
                f'{name}p: {_KEY} ":" {name}',
                f'{name}o: "{{" ({name}p ("," {name}p)*)? "}}"',
                f'{name}a: "[" ({name} ("," {name})*)? "]"',
            ]
        return self._any
