"""Errors are one line that says what is wrong."""

import gguflow

try:
    gguflow.Model.load("~/no-such-file.gguf")
except gguflow.GgufError as e:
    print(e)
try:
    gguflow.SamplerSettings(top_p=2.0)
except gguflow.SamplerError as e:
    print(e)
model = gguflow.Model.load(n_ctx=64)
try:
    next(model.generate("word " * 200))
except gguflow.ContextError as e:
    print(e)
