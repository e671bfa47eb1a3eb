"""Several answers to one prompt, ranked by their probability."""

import gguflow

model = gguflow.Model.load(n_ctx=256)
settings = [gguflow.SamplerSettings(seed=i) for i in range(4)]
scores = [0.0] * 4
texts = [""] * 4
for i, piece in model.generate_many(["One day a"] * 4, 10, settings, n_seqs=4, logprobs=0):
    texts[i] += piece
    scores[i] += sum(piece.logprobs)
print(max(zip(scores, texts, strict=True)))
