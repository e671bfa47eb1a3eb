"""Leave a generation; the next one keeps what the cache holds of it."""

import gguflow

model = gguflow.Model.load()
for n, piece in enumerate(model.generate("Once upon a time", max_tokens=100)):
    print(piece, end="")
    if n == 5:
        break
*_, last = model.generate("Once upon a time there", max_tokens=2)
assert last.timings is not None and last.timings.n_prompt <= 3
