"""Probabilities of tokens and of those most likely in their place."""

import math

import gguflow

model = gguflow.Model.load()
for piece in model.generate("The dog ran to the", max_tokens=5, logprobs=3, seed=1):
    for id, logprob, top in zip(piece.ids, piece.logprobs, piece.top_logprobs, strict=True):
        print(id, f"{math.exp(logprob):.2f}", [(model.tokenizer.token_text(t), p) for t, p in top])
