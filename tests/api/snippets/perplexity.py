"""Perplexity of a text, from all its logits."""

import numpy as np

import gguflow

model = gguflow.Model.load()
ids = model.tokenizer.encode("The little girl went to the park with her dog.")
logits = model.logits(ids).astype(np.float64)
logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
nll = -logprobs[np.arange(len(ids) - 1), ids[1:]].mean()
assert 1 < np.exp(nll) < 1000
