"""Which functions an answer may, or must, call: `tool_choice` of the Python API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gguflow.engine.dataclass import dataclass

ToolChoice = Literal["auto", "none", "required"] | Mapping[str, object]
Tools = Sequence[Mapping[str, object]]
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")  # as OpenAI's API has them


@dataclass(frozen=True)
class Named:
    """A function of `tools`, as its grammar is made of it."""

    name: str
    parameters: dict[str, Any] | None
    strict: bool | None


def tools_of(tools: Tools | None, choice: ToolChoice | None) -> Tools | None:
    """The tools that a conversation is shown. Raises TypeError and ValueError for a choice that
    there is not."""
    if choice is None:
        return tools
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise ValueError(f"tool_choice {choice!r}: expected auto, none, required or a function")
        if choice == "none":
            return None
    elif isinstance(choice, Mapping):
        name_of(choice)
    else:
        raise TypeError(f"tool_choice {choice!r}: expected a string or a mapping")
    if tools is None or (not tools and choice != "auto"):
        raise ValueError("tool_choice: there are no tools")
    return tools


def name_of(choice: Mapping[str, object]) -> str:
    """The function that a choice names. Raises ValueError for one that names none."""
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise ValueError(
            f'tool_choice {dict(choice)!r}: expected {{"type": "function", '
            '"function": {"name": ...}}'
        )
    return name


def functions_of(tools: Tools) -> list[Named]:
    """The functions of tools as OpenAI's API has them. Raises TypeError and ValueError by name."""
    found = list[Named]()
    for i, tool in enumerate(tools):
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str):
            raise ValueError(f"tools.{i}.function.name: a function has a name")
        if not _NAME.fullmatch(name):
            raise ValueError(f"tools.{i}.function.name {name!r}: expected {_NAME.pattern}")
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise TypeError(f"tools.{i}.function.parameters: expected a mapping")
        if any(f.name == name for f in found):
            raise ValueError(f"tools.{i}.function.name: there are two tools {name!r}")
        given = None if parameters is None else dict(parameters)
        found.append(Named(name, given, function.get("strict") is True))
    return found
