"""Conversations to prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gguflow.engine.calls.formats import ToolFormat
from gguflow.models import chat
from gguflow.models.chat import ChatTemplateError
from gguflow.models.chat_history import in_words, rendered
from gguflow.models.chat_tools import told_of_tools

from .errors import refused
from .schema.chat import Message, Tool

if TYPE_CHECKING:
    from .manager import Loaded

# What templates see and `chat_template_kwargs` cannot set.
OWN = ("tools", *chat.OWN)


def chat_messages(
    messages: Sequence[Message], form: ToolFormat, tools: Sequence[Tool]
) -> list[dict[str, Any]]:
    """Messages as templates expect them: text contents, arguments as objects. Where a template
    knows no tools they are told in a system message. Raises ApiError."""
    out: list[dict[str, Any]] = []
    for i, m in enumerate(messages):
        given = m.model_dump(exclude_none=True)
        given["role"] = "system" if m.role == "developer" else m.role
        given["content"] = _text(m)
        if m.role == "tool" and m.tool_call_id is None:
            raise refused(f"messages.{i}.tool_call_id", "a tool's message names its call")
        if m.role != "assistant" and m.content is None:
            raise refused(f"messages.{i}.content", "Field required")
        if m.tool_calls:
            given["tool_calls"] = [
                {"id": c.id, "type": "function",
                 "function": {"name": c.function.name,
                              "arguments": _arguments(c.function.arguments, i, j)}}
                for j, c in enumerate(m.tool_calls)
            ]  # fmt: skip
        out.append(given if form.native else in_words(given))
    if tools and not form.native:
        out = _with_instructions(out, form, tools)
    return out


def _text(m: Message) -> str:
    if m.content is None:
        return ""
    if isinstance(m.content, str):
        return m.content
    return "".join(part.text for part in m.content)


def _arguments(text: str, i: int, j: int) -> Any:
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        field = f"messages.{i}.tool_calls.{j}.function.arguments"
        raise refused(field, "not JSON") from None


def _with_instructions(
    messages: list[dict[str, Any]], form: ToolFormat, tools: Sequence[Tool]
) -> list[dict[str, Any]]:
    example = f'{form.first}NAME{form.mid}{{"ARGUMENT": "VALUE"}}{form.last}'
    return told_of_tools(messages, [tool_object(t) for t in tools], example)


def tool_object(tool: Tool) -> dict[str, Any]:
    """A tool as templates expect it."""
    function = tool.function.model_dump(exclude_none=True, exclude={"strict"})
    function.setdefault("parameters", {"type": "object", "properties": {}})
    return {"type": "function", "function": function}


def chat_ids(
    loaded: Loaded,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> tuple[list[int], str]:
    """A conversation's tokens and text. Runs the model's template, so not in the event loop. Raises
    ApiError."""
    form, template = loaded.tools, loaded.template
    given = chat_messages(messages, form, tools)
    extra = dict(variables or {})
    for name in OWN:
        if name in extra:
            raise refused(f"chat_template_kwargs.{name}", "has a field of its own")
    shown = [tool_object(t) for t in tools] if tools and form.native else None
    size = sum(len(m["content"]) for m in given)
    check_size(loaded, size, "messages")
    try:
        prompts = add_generation_prompt and not continue_final_message
        text = rendered(template, given, prompts, tools=shown, **extra)
        if continue_final_message:
            text = _continued(text, str(given[-1]["content"]))
        return template.ids(loaded.tokenizer, text), text
    except ChatTemplateError as error:
        raise refused("messages", str(error), "template_error") from None


def _continued(text: str, last: str) -> str:
    """A conversation whose last message is the beginning of the answer: what the template writes
    after it is cut."""
    last = last.strip()
    at = text.rfind(last)
    if not last or at < 0:
        raise refused("continue_final_message", "the last message has no text to continue")
    return text[: at + len(last)]


def check_size(loaded: Loaded, n_chars: int, field: str) -> None:
    """Refuses what cannot fit the context, before it is tokenized."""
    if n_chars > loaded.n_ctx * loaded.longest_piece:
        raise refused(
            field, f"{n_chars} characters cannot fit the context of {loaded.n_ctx} tokens",
            "context_length_exceeded",
        )  # fmt: skip


def check_ids(loaded: Loaded, ids: Sequence[int], field: str) -> None:
    """Refuses prompts that the engine would."""
    n_vocab = loaded.model.hp.n_vocab
    if not ids:
        raise refused(field, "the prompt has no tokens")
    if len(ids) > loaded.n_ctx:
        raise refused(
            field, f"the prompt has {len(ids)} tokens, the context {loaded.n_ctx}",
            "context_length_exceeded",
        )  # fmt: skip
    worst = max(ids)
    if worst >= n_vocab:
        raise refused(field, f"token id {worst} is outside the vocabulary of {n_vocab}")
