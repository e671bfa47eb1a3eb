"""The whole text at once."""

import gguflow

with gguflow.Model.load() as model:
    text = "".join(model.generate("Once upon a time", max_tokens=16, temperature=0.0))
assert len(text) > 20
