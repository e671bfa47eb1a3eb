"""Which text is nearest."""

import numpy as np

import gguflow

model = gguflow.Model.load()
texts = ["The dog ran home.", "A dog went to its house.", "Rain fell on the sea."]
vectors = model.embed(texts)
assert vectors.shape == (3, model.hp.n_embd) and vectors.dtype == np.float32
similar = vectors @ vectors[0]
assert similar[0] > 0.999 and model.embed("one", pooling="last").shape == (1, model.hp.n_embd)
