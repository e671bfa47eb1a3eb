"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gguflow.server.config import ReasoningFormat

from .base import Body
from .output import Grammar, OutputFields
from .sampling import Count, Penalty, SamplingFields, Stop, TokenId

Texts = Annotated[list[str], Field(max_length=4096)]
Ids = list[TokenId]
Prompt = str | Ids | Texts | Annotated[list[Ids], Field(max_length=4096)]
Budget = Annotated[int, Field(ge=-1, lt=1 << 31)]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


class TextPart(Body):
    """Text within a message. Images and sound are refused: no model here takes them."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class CalledFunction(Body):
    """What a model called."""

    name: Annotated[str, Field(max_length=256)]
    arguments: str


class ToolCall(Body):
    """A call in a message of the assistant's."""

    id: Annotated[str, Field(max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Body):
    """A message; what the template knows besides goes to it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=1024)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    reasoning_content: str | None = None


class Function(Body):
    """A function the model may call. parameters: the JSON schema of its arguments."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool."""

    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    """A function by name."""

    name: Name


class NamedTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Body):
    """Some of the tools, of which one may or must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=1024)]


class AllowedToolsChoice(Body):
    """A choice among some of the tools; the model is shown all."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class StreamOptions(Body):
    """include_usage: end the stream with the tokens counted."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatBody(SamplingFields, OutputFields):
    """A conversation to answer."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    model: Annotated[str, Field(max_length=1024)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=1024)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=256)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    tools: Annotated[list[Tool], Field(max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedToolsChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, Field(max_length=64)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_format: ReasoningFormat | None = None
    include_reasoning: bool | None = None
    thinking_budget_tokens: Budget | None = None
    thinking_token_budget: Budget | None = None
    modalities: list[str] | None = None
    user: Annotated[str, Field(max_length=1024)] | None = None
    store: bool | None = None
    service_tier: Annotated[str, Field(max_length=64)] | None = None


class CompletionBody(SamplingFields, OutputFields):
    """Text to continue."""

    prompt: Prompt
    model: Annotated[str, Field(max_length=1024)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=1024)] | None = None
    best_of: Annotated[int, Field(ge=1, le=1024)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=256)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    add_special_tokens: bool | None = None
    user: Annotated[str, Field(max_length=1024)] | None = None


__all__ = ["ChatBody", "CompletionBody", "Function", "Grammar", "Message", "NamedTool", "Tool"]
