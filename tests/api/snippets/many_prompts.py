"""Many prompts together."""

import gguflow

model = gguflow.Model.load(n_ctx=256)
prompts = ["The cat", "The dog", "Once upon a time", "One day"]
texts = [""] * len(prompts)
for i, piece in model.generate_many(prompts, max_tokens=12, n_seqs=4, seed=1):
    texts[i] += piece
assert all(texts)
