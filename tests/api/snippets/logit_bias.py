"""Ban a token, prefer another."""

import math

import gguflow

model = gguflow.Model.load()
ban = model.tokenizer.encode(" the", add_special=False)[-1]
ids = [
    id
    for piece in model.generate("He went to", max_tokens=20, logit_bias={ban: -math.inf}, seed=1)
    for id in piece.ids
]
assert ban not in ids
