"""An answer of a chat model, taken apart: what is said, what was thought, what is called."""

from __future__ import annotations

from gguflow.engine.dataclass import dataclass


@dataclass(frozen=True)
class ToolCall:
    """A function that the model calls.

    id: names the call; the message that gives its result has it as `tool_call_id`. arguments: a
    JSON object, as text. parsed: the same as Python has it.
    """

    id: str
    name: str
    arguments: str
    parsed: dict[str, object]

    def as_dict(self) -> dict[str, object]:
        """The call as a message has it, its arguments as an object: what most templates expect."""
        function = {"name": self.name, "arguments": self.parsed}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class ChatMessage:
    """An answer. content: what is said; "" for nothing. reasoning: what was thought before."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """The message as `Model.chat` takes it, to go on with the conversation."""
        message: dict[str, object] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.as_dict() for call in self.tool_calls]
        return message
