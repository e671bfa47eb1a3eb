import gguflow

with gguflow.Model.load() as model:
    plain = "".join(model.generate("Once upon a time", max_tokens=30, seed=1))
    draft = model.load_draft("bundled")
    model.speculate(gguflow.Speculation(draft=draft, lookup=True))
    guessed = [*model.generate("Once upon a time", max_tokens=30, seed=1)]
    assert "".join(guessed) == plain
    timings = guessed[-1].timings
    assert timings is not None
    print(timings.n_drafted, "guessed,", timings.n_accepted, "came true")
