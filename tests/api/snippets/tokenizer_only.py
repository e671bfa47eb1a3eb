"""A tokenizer without the model's weights."""

import gguflow

path = gguflow.Model.load().source.path
tok = gguflow.Tokenizer.load(path)
ids = tok.encode("Hello there", add_special=False)
stream = tok.stream()
assert "".join([*map(stream.push, ids), stream.flush()]).strip() == "Hello there"
