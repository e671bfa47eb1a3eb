"""End at a string, which is no part of the text."""

import gguflow

model = gguflow.Model.load()
*_, last = pieces = list(
    model.generate("Once upon a time", max_tokens=100, stop=[".", "!"], seed=3)
)
assert "." not in "".join(pieces)
assert last.finish_reason in ("stop", "length")
