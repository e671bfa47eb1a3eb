"""/v1/responses: the same conversations under OpenAI's newer names, streamed as typed events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from .answer import Answers
from .asks import unused
from .errors import ApiError, refused
from .exchange import Exchange
from .reply import Reply
from .schema.base import parse, unknown_fields
from .schema.chat import ChatBody
from .schema.responses import (
    FlatAllowedTools,
    FlatSchemaFormat,
    FlatToolChoice,
    FunctionCall,
    FunctionCallOutput,
    InputMessage,
    ReasoningItem,
    ResponsesBody,
)
from .schema.sampling import SamplingFields
from .turn import Turn

# Where a field of the conversation stands in this endpoint's body.
_NAMES = (("max_completion_tokens", "max_output_tokens"), ("messages", "input"),
          ("response_format.json_schema.schema", "text.format.schema"),
          ("response_format", "text.format"), ("reasoning_effort", "reasoning.effort"))  # fmt: skip
# Fields that are the same there.
_SAME = ("parallel_tool_calls", "chat_template_kwargs", "thinking_budget_tokens",
         "thinking_token_budget")  # fmt: skip


async def responses(exchange: Exchange) -> None:
    """Answer a conversation."""
    body = parse(ResponsesBody, await exchange.body())
    exchange.warnings += unknown_fields(body)
    _check(body, exchange)
    chat = to_chat(body)
    async with exchange.service.using(exchange, body.model, "response") as (loaded, line):
        try:
            turn = await Turn.of(loaded, chat, exchange)
            answers = Answers(exchange, loaded, [turn.ask], line)
            name = exchange.service.manager.shown(body.model)
            reply = Reply(exchange, body, name, turn.reader(loaded), answers)
            if body.stream:
                await reply.stream()
            else:
                await reply.whole()
        except ApiError as error:
            raise _renamed(error) from None
        line.finish = reply.reader.finish


def _check(body: ResponsesBody, exchange: Exchange) -> None:
    """Refuses what this server does not do."""
    unused(body.store, (None, False), "store", "this server keeps no conversations")
    unused(body.previous_response_id, (None,), "previous_response_id", "nothing is kept")
    unused(body.conversation, (None,), "conversation", "nothing is kept")
    unused(body.background, (None, False), "background", "answers are given at once")
    unused(body.truncation, (None, "disabled"), "truncation", "prompts are not cut")
    for i, name in enumerate(body.include or ()):
        # Thoughts are given as they are; nothing would be hidden by encrypting them.
        if name != "reasoning.encrypted_content":
            raise refused(f"include.{i}", "there is nothing else to include")
        exchange.warnings.append(f"include.{i}")
    unused(body.top_logprobs, (None, 0), "top_logprobs", "given by /v1/chat/completions alone")
    unused(body.max_tool_calls, (None,), "max_tool_calls", "calls are the client's to make")
    if body.reasoning is not None and body.reasoning.summary is not None:
        exchange.warnings.append("reasoning.summary")
    if body.text is not None and body.text.verbosity is not None:
        exchange.warnings.append("text.verbosity")
    exchange.warnings += [n for n in ("user", "service_tier") if getattr(body, n) is not None]


def _renamed(error: ApiError) -> ApiError:
    """A refusal with this endpoint's name of the field."""
    param = error.param or ""
    for chat, here in _NAMES:
        if param == chat or param.startswith(chat + "."):
            message = error.message.replace(param, here + param[len(chat) :], 1)
            return ApiError(error.status, message, param=here + param[len(chat) :],
                            code=error.code, kind=error.kind, headers=error.headers)  # fmt: skip
    return error


def to_chat(body: ResponsesBody) -> ChatBody:
    """The body as /v1/chat/completions takes it. Raises ApiError."""
    fields: dict[str, Any] = {
        name: getattr(body, name)
        for name in [*SamplingFields.model_fields, *_SAME]
        if getattr(body, name) is not None
    }
    fields["model"] = body.model
    fields["messages"] = [*_messages(body)]
    if body.max_output_tokens is not None:
        fields["max_completion_tokens"] = body.max_output_tokens
    if body.reasoning is not None and body.reasoning.effort is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    if body.tools:
        fields["tools"] = [
            {"type": "function", "function": t.model_dump(exclude_none=True, exclude={"type"})}
            for t in body.tools
        ]
    if isinstance(body.tool_choice, FlatToolChoice):
        name = {"name": body.tool_choice.name}
        fields["tool_choice"] = {"type": "function", "function": name}
    elif isinstance(body.tool_choice, FlatAllowedTools):
        allowed = [
            {"type": "function", "function": {"name": t.name}} for t in body.tool_choice.tools
        ]
        fields["tool_choice"] = {
            "type": "allowed_tools",
            "allowed_tools": {"mode": body.tool_choice.mode, "tools": allowed},
        }
    elif body.tool_choice is not None and (body.tools or body.tool_choice == "required"):
        fields["tool_choice"] = body.tool_choice
    form = body.text.format if body.text is not None else None
    if isinstance(form, FlatSchemaFormat):
        wrapped = {"name": form.name, "schema": form.schema_, "strict": form.strict}
        fields["response_format"] = {"type": "json_schema", "json_schema": wrapped}
    elif form is not None:
        fields["response_format"] = form.model_dump(by_alias=True, exclude_none=True)
    try:
        return ChatBody.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise refused("input", first["msg"]) from None


def _messages(body: ResponsesBody) -> Iterator[dict[str, Any]]:
    if body.instructions is not None:
        yield {"role": "system", "content": body.instructions}
    if isinstance(body.input, str):
        yield {"role": "user", "content": body.input}
        return
    calls: list[dict[str, Any]] = []
    thought = ""
    for item in body.input:
        if isinstance(item, FunctionCall):
            function = {"name": item.name, "arguments": item.arguments}
            calls.append({"id": item.call_id, "type": "function", "function": function})
            continue
        if calls:  # calls of one turn are one message
            yield _assistant(None, thought, calls)
            calls, thought = [], ""
        if isinstance(item, ReasoningItem):
            thought += "".join(p.text for p in item.content or item.summary or ())
        elif isinstance(item, FunctionCallOutput):
            text = item.output
            if not isinstance(text, str):
                text = "".join(p.text for p in text)
            yield {"role": "tool", "tool_call_id": item.call_id, "content": text}
        elif isinstance(item, InputMessage):
            content = item.content
            if not isinstance(content, str):
                content = "".join(p.text for p in content)
            if item.role == "assistant":
                yield _assistant(content, thought)
                thought = ""
            else:
                yield {"role": item.role, "content": content}
    if calls:
        yield _assistant(None, thought, calls)


def _assistant(
    content: str | None, thought: str, calls: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message
