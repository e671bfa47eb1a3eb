"""How a model is run: keyword arguments, or an object."""

import gguflow

options = gguflow.Options(n_ctx=512, n_threads=1)
model = gguflow.Model.load(None, options, k_type="q8_0", v_type="q8_0")
assert model.options.n_ctx == 512 and model.options.k_type.name.lower() == "q8_0"
longer = model.with_options(n_ctx=256)  # the same weights
assert "".join(longer.generate("One day", max_tokens=4))
