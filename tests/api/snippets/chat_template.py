"""The prompt that a conversation becomes."""

import gguflow

model = gguflow.Model.load()
messages = [{"role": "user", "content": "Hello"}]
print(model.chat_template.render(messages))
chatml = gguflow.ChatTemplate.named("chatml")
assert chatml.render(messages).startswith("<|im_start|>user")
