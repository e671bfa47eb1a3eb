"""Stream a continuation to the terminal."""

import gguflow

model = gguflow.Model.load()
for piece in model.generate("Once upon a time", max_tokens=16):
    print(piece, end="", flush=True)
