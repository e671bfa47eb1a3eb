"""Tools in the model's template, and another template."""

import gguflow

model = gguflow.Model.load()
weather = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
messages = [{"role": "user", "content": "How is the weather?"}]
print("".join(model.chat(messages, max_tokens=8, tools=[weather], template="chatml")))
