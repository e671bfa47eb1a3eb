"""Calls and their results among the messages that a template is given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .chat import ChatTemplate, ChatTemplateError


def in_words(message: Mapping[str, Any]) -> dict[str, Any]:
    """Calls and results as text, for templates that know neither; the calls as
    `chat_tools.told_of_tools` asks for them. Raises ChatTemplateError."""
    out = dict(message)
    if calls := out.pop("tool_calls", None):
        text = "\n".join(_call_in_words(c) for c in calls)
        out["content"] = f"{out.get('content') or ''}\n{text}".strip()
    if out.get("role") == "tool":
        out["role"] = "user"
        out["content"] = f"<tool_response>\n{out.get('content')}\n</tool_response>"
    return out


def _call_in_words(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "name" not in function:
        raise ChatTemplateError("a call of tool_calls has no function with a name")
    arguments = json.dumps(function.get("arguments", {}))
    return f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {arguments}}}\n</tool_call>'


def rendered(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = True,
    /,
    **variables: object,
) -> str:
    """The template's text of messages whose calls have objects for arguments: some templates want
    these as JSON. Raises ChatTemplateError."""
    try:
        return template.render(messages, add_generation_prompt, **variables)
    except ChatTemplateError:
        if not any(isinstance(m, Mapping) and m.get("tool_calls") for m in messages):
            raise
        written = [
            {**m, "tool_calls": [_with_text(c) for c in m["tool_calls"]]}
            if m.get("tool_calls") else m
            for m in messages
        ]  # fmt: skip
        return template.render(written, add_generation_prompt, **variables)


def _with_text(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        return call
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}
