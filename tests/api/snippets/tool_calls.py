"""Thoughts, text and calls of an answer, and the results back to the model."""

import json

import gguflow

model = gguflow.Model.load()
weather = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
messages: list[dict[str, object]] = [{"role": "user", "content": "How is the weather?"}]
for piece in model.chat(messages, max_tokens=8, tools=[weather]):
    if piece.kind == "reasoning":
        print(f"({piece})", end="")
    elif piece.kind == "content":
        print(piece, end="")
message = piece.message
assert message is not None and isinstance(message, gguflow.ChatMessage)
print(message.content.strip(), message.reasoning.strip(), piece.finish_reason)
messages.append(message.as_dict())
if piece.finish_reason == "tool_calls":
    for call in message.tool_calls:
        assert json.loads(call.arguments) == call.parsed
        result = f"sunny in {call.parsed.get('city', 'town')}"
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
