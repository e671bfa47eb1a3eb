"""How chat templates write calls.

A call is always `first NAME mid ARGUMENTS last`, and several stand apart by `separator`. The
grammar holds a model to exactly this, so reading it back takes no guessing.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Literal

from gguflow.engine.dataclass import dataclass

COUNT = "\0"  # within a form's texts: a number that the model writes
_TOOLS = re.compile(r"\btools\b")


@dataclass(frozen=True)
class Tags:
    """Arguments in tags: `open KEY mid VALUE close`, one after the other."""

    open: str
    mid: str
    close: str


@dataclass(frozen=True)
class ToolFormat:
    """A form of calls. native: the template shows tools itself, else they are told in words.

    arguments: JSON; in tags; or Gemma's, JSON with bare keys and quotes of its own.
    ids: of calls: "long", "short" (nine characters, which Mistral's templates ask for), or a text
    with the call's name and number as the model writes it.
    parallel: whether there may be several calls in an answer. channels: messages with headers.
    """

    name: str
    first: str
    mid: str
    separator: str
    last: str
    native: bool = True
    arguments: Tags | Literal["json", "gemma"] = "json"
    ids: str = "long"
    parallel: bool = True
    channels: bool = False

    @cached_property
    def trigger(self) -> str:
        """How calls begin: what no text holds from which they are to be told."""
        return re.split("[\n\0]", self.first, maxsplit=1)[0]


HERMES = ToolFormat(
    "hermes",
    '<tool_call>\n{"name": "',
    '", "arguments": ',
    '}\n</tool_call>\n<tool_call>\n{"name": "',
    "}\n</tool_call>",
)
MISTRAL = ToolFormat(
    "mistral", '[TOOL_CALLS][{"name": "', '", "arguments": ', '}, {"name": "', "}]", ids="short"
)
MISTRAL_ARGS = ToolFormat("mistral-args", "[TOOL_CALLS]", "[ARGS]", "[TOOL_CALLS]", "", ids="short")
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
QWEN_CODER = ToolFormat(
    "qwen-coder",
    "<tool_call>\n<function=",
    ">\n",
    "</function>\n</tool_call>\n<tool_call>\n<function=",
    "</function>\n</tool_call>",
    arguments=Tags("<parameter=", ">\n", "\n</parameter>\n"),
)
GLM = ToolFormat(
    "glm",
    "<tool_call>",
    "\n",
    "</tool_call>\n<tool_call>",
    "</tool_call>",
    arguments=Tags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
)
GLM_TIGHT = ToolFormat(  # without line breaks
    "glm-tight",
    "<tool_call>",
    "",
    "</tool_call><tool_call>",
    "</tool_call>",
    arguments=Tags("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
)
GEMMA = ToolFormat(
    "gemma",
    "<|tool_call>call:",
    "",
    "<tool_call|><|tool_call>call:",
    "<tool_call|>",
    arguments="gemma",
)
DEEPSEEK = ToolFormat(
    "deepseek",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜><｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
)
DEEPSEEK_FENCED = ToolFormat(
    "deepseek-fenced",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "\n```json\n",
    "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
)
KIMI = ToolFormat(
    "kimi",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
    f":{COUNT}<|tool_call_argument_begin|>",
    "<|tool_call_end|><|tool_call_begin|>functions.",
    "<|tool_call_end|><|tool_calls_section_end|>",
    ids="functions.{name}:{number}",
)
COHERE = ToolFormat(
    "cohere",
    f'<|START_ACTION|>[\n    {{"tool_call_id": "{COUNT}", "tool_name": "',
    '", "parameters": ',
    f'}},\n    {{"tool_call_id": "{COUNT}", "tool_name": "',
    "}\n]<|END_ACTION|>",
)
HARMONY = ToolFormat(
    "harmony",
    "<|channel|>commentary to=functions.",
    " <|constrain|>json<|message|>",
    "",
    "",
    parallel=False,
    channels=True,
)
TOLD = ToolFormat("told", HERMES.first, HERMES.mid, HERMES.separator, HERMES.last, native=False)

# The first whose marks are all in a template's source is its form. A template that shows no tools
# gets them told in words.
_MARKS: tuple[tuple[tuple[str, ...], ToolFormat], ...] = (
    (("<|channel|>", "<|message|>", "functions"), HARMONY),
    (("</arg_key><arg_value>",), GLM_TIGHT),
    (("<arg_key>",), GLM),
    (("<tool_call>", "<function="), QWEN_CODER),
    (("<|START_ACTION|>",), COHERE),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL_ARGS),
    (("[TOOL_CALLS]",), MISTRAL),
    (("<|/tool_call|>",), PHI4),
    (("<|tool_call>", "<tool_call|>"), GEMMA),
    (("<|tool_call|>",), GRANITE),
    (("<｜tool▁calls▁begin｜>", "```json"), DEEPSEEK_FENCED),
    (("<｜tool▁calls▁begin｜>",), DEEPSEEK),
    (("<|tool_calls_section_begin|>",), KIMI),
    (("<tool_call>[",), GRANITE_TAG),
    (("<tool_call>",), HERMES),
    (("<|start_header_id|>", '"parameters"'), LLAMA3),
    (("<|python_tag|>", '"parameters"'), LLAMA3),
)


def tool_format(source: str) -> ToolFormat:
    """The form of a template's calls."""
    if not _TOOLS.search(source):
        return TOLD
    return next((form for marks, form in _MARKS if all(m in source for m in marks)), TOLD)
