"""From text to ids and back; ids as a prompt."""

import gguflow

model = gguflow.Model.load()
tok = model.tokenizer
ids = tok.encode("Once upon a time")
assert tok.decode(ids) == "Once upon a time"
made = [id for piece in model.generate(ids, max_tokens=6, temperature=0) for id in piece.ids]
assert len(made) == 6
