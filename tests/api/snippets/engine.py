"""Continuous batching: requests in, tokens out."""

import gguflow

model = gguflow.Model.load(n_ctx=256)
engine = gguflow.Engine(model, n_seqs=4)
prompts = ["The cat", "The dog", "One day"]
ids = {
    engine.add(gguflow.Request(model.tokenizer.encode(p), max_tokens=8, logprobs=0)): p
    for p in prompts
}
while engine.has_work:
    for token in engine.step():
        if token.id is not None and token.logprob is not None:
            print(ids[token.request], token.id, round(token.logprob, 2), token.finish)
