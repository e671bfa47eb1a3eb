"""How chat templates write calls.

A call is always `first NAME mid ARGUMENTS last`, and several stand apart by `separator`. The
grammar holds a model to exactly this, so reading it back takes no guessing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ToolFormat:
    """A form of calls. native: the template shows tools itself, else they are told in words."""

    name: str
    first: str
    mid: str
    separator: str
    last: str
    native: bool = True


HERMES = ToolFormat(
    "hermes",
    '<tool_call>\n{"name": "',
    '", "arguments": ',
    '}\n</tool_call>\n<tool_call>\n{"name": "',
    "}\n</tool_call>",
)
MISTRAL = ToolFormat(
    "mistral", '[TOOL_CALLS][{"name": "', '", "arguments": ', '}, {"name": "', "}]"
)
MISTRAL_ARGS = ToolFormat("mistral-args", "[TOOL_CALLS]", "[ARGS]", "[TOOL_CALLS]", "")
LLAMA3 = ToolFormat("llama3", '{"name": "', '", "parameters": ', '}; {"name": "', "}")
PHI4 = ToolFormat(
    "phi4",
    '<|tool_call|>[{"name": "',
    '", "arguments": ',
    '}, {"name": "',
    "}]<|/tool_call|>",
)
GRANITE = ToolFormat(
    "granite", '<|tool_call|>[{"name": "', '", "arguments": ', '}, {"name": "', "}]"
)
GRANITE_TAG = ToolFormat(
    "granite-tag", '<tool_call>[{"name": "', '", "arguments": ', '}, {"name": "', "}]"
)
TOLD = ToolFormat("told", HERMES.first, HERMES.mid, HERMES.separator, HERMES.last, native=False)

# The first whose marks are all in a template's source is its form. Templates with forms of their
# own that are none of these (XML arguments and the like) get the tools told in words.
_MARKS: tuple[tuple[tuple[str, ...], ToolFormat], ...] = (
    (("<arg_key>",), TOLD),
    (("<function=",), TOLD),
    (("<|START_ACTION|>",), TOLD),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL_ARGS),
    (("[TOOL_CALLS]",), MISTRAL),
    (("<|/tool_call|>",), PHI4),
    (("<|tool_call|>",), GRANITE),
    (("<tool_call>[",), GRANITE_TAG),
    (("<tool_call>", "tools"), HERMES),
    (("<|start_header_id|>", "tools", '"parameters"'), LLAMA3),
)


def tool_format(source: str) -> ToolFormat:
    """The form of a template's calls."""
    for marks, form in _MARKS:
        if all(mark in source for mark in marks):
            return form
    return TOLD
