"""Why it ended, and how fast it was."""

import gguflow

model = gguflow.Model.load()
*_, last = model.generate("Once upon a time", max_tokens=10)
assert last.finish_reason == "length"
assert last.timings is not None
t = last.timings
print(f"{t.n_prompt} tokens in {t.prompt_s:.3f} s, {t.n_generated} in {t.generate_s:.3f} s")
