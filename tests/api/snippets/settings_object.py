"""One settings object for many generations, changed for one of them."""

from dataclasses import replace

import gguflow

careful = gguflow.SamplerSettings(temperature=0.3, top_k=20, seed=1)
model = gguflow.Model.load()
first = "".join(model.generate("The cat", 8, careful))
again = "".join(model.generate("The cat", 8, careful))
other = "".join(model.generate("The cat", 8, replace(careful, seed=2, temperature=1.5)))
assert first == again and other
