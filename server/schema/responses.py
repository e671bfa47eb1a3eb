"""The body of /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .base import Body
from .chat import Budget, Name, TextPart
from .output import GrammarFormat, JsonObjectFormat, RegexFormat, TextFormat
from .sampling import Count, SamplingFields


class InputMessage(Body):
    """A message. type: may be left out."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    id: str | None = None
    status: str | None = None


class FunctionCall(Body):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(max_length=256)]
    name: Annotated[str, Field(max_length=256)]
    arguments: str
    id: str | None = None
    status: str | None = None


class FunctionCallOutput(Body):
    """What it came to."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(max_length=256)]
    output: str | list[TextPart]
    id: str | None = None
    status: str | None = None


class ReasoningText(Body):
    """A part of thoughts, or of their summary."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Body):
    """What the model thought before what follows, as an answer had it."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    summary: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: str | None = None


class FlatTool(Body):
    """A function, as this endpoint writes it."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatToolChoice(Body):
    """The tool that must be called."""

    type: Literal["function"]
    name: Name


class FlatAllowedTools(Body):
    """A choice among some of the tools; the model is shown all."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FlatToolChoice], Field(min_length=1, max_length=1024)]


class FlatSchemaFormat(Body):
    """JSON of a schema, as this endpoint writes it."""

    type: Literal["json_schema"]
    name: Annotated[str, Field(max_length=256)] = "schema"
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    """The form of the text."""

    format: (
        Annotated[
            TextFormat | JsonObjectFormat | FlatSchemaFormat | GrammarFormat | RegexFormat,
            Field(discriminator="type"),
        ]
        | None
    ) = None
    verbosity: str | None = None


class Reasoning(Body):
    """How much the model is to think."""

    effort: Annotated[str, Field(max_length=64)] | None = None
    summary: str | None = None


class ResponsesBody(SamplingFields):
    """A conversation to go on with."""

    input: (
        str
        | Annotated[
            list[InputMessage | FunctionCall | FunctionCallOutput | ReasoningItem],
            Field(min_length=1, max_length=10_000),
        ]
    )
    model: Annotated[str, Field(max_length=1024)] | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Count | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FlatTool], Field(max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatToolChoice | FlatAllowedTools | None = (
        None
    )
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    max_tool_calls: Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking_budget_tokens: Budget | None = None
    thinking_token_budget: Budget | None = None
    user: Annotated[str, Field(max_length=1024)] | None = None
    service_tier: Annotated[str, Field(max_length=64)] | None = None
