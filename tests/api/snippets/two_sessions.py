"""Two conversations with caches of their own."""

import gguflow

model = gguflow.Model.load(n_ctx=256)
one, two = model.new_session(), model.new_session()
a = "".join(model.generate("The cat", max_tokens=8, session=one, seed=1))
b = "".join(model.generate("The dog", max_tokens=8, session=two, seed=1))
assert "".join(model.generate("The cat", max_tokens=8, session=one, seed=1)) == a and b
