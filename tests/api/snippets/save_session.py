"""Keep a long prompt's state on disk."""

import tempfile
from pathlib import Path

import gguflow

model = gguflow.Model.load()
prompt = model.tokenizer.encode("Once upon a time there was a little dog. " * 8)
with tempfile.TemporaryDirectory() as folder:
    first = model.new_session()
    made = list(first.generate(prompt, 8, gguflow.SamplerSettings(temperature=0)))
    first.save(Path(folder) / "state.bin")
    second = model.new_session()
    second.load(Path(folder) / "state.bin")
    assert list(second.generate(prompt, 8, gguflow.SamplerSettings(temperature=0))) == made
    assert second.timings.n_prompt < 3  # the rest was not computed again
