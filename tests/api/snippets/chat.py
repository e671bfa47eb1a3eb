"""A conversation."""

import gguflow

model = gguflow.Model.load()
messages = [
    {"role": "system", "content": "You tell short stories."},
    {"role": "user", "content": "Tell me of a dog."},
]
answer = "".join(model.chat(messages, max_tokens=16, temperature=0.5, seed=1))
messages.append({"role": "assistant", "content": answer})
messages.append({"role": "user", "content": "And of a cat?"})
for piece in model.chat(messages, max_tokens=16):
    print(piece, end="")
