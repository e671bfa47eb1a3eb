"""A function that must be called, with arguments that its schema allows."""

import gguflow

model = gguflow.Model.load(n_ctx=512)
weather = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
choice = {"type": "function", "function": {"name": "weather"}}
messages = [{"role": "user", "content": "How is the weather?"}]
*_, last = model.chat(messages, tools=[weather], tool_choice=choice, seed=1)
assert last.message is not None
for call in last.message.tool_calls:
    print(call.name, call.parsed["city"], last.finish_reason)
