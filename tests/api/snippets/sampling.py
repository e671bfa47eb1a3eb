"""Sampler settings by name."""

import gguflow

model = gguflow.Model.load(n_ctx=256)
text = "".join(
    model.generate(
        "The dog",
        max_tokens=12,
        temperature=0.7,
        top_k=50,
        top_p=0.9,
        min_p=0.02,
        repeat_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        seed=42,
    )
)
assert text
