"""Requests of a model that reads prompts in both directions: each gets what it gets alone, and no
rows of another's prompt, however the runs are cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.model import Model
from gguflow.engine.planning import Planner, buckets
from gguflow.engine.prompt import ContextError
from gguflow.engine.sampling import GREEDY, SamplerSettings
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import EmbedRequest, Request

HOT = SamplerSettings(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=1)
RNG = np.random.default_rng(4)
LONG = [int(i) for i in RNG.integers(5, 96, 300)]
# Within a page, ends of pages, several pages; three that begin alike, two that are the same.
PROMPTS = [LONG[:n] for n in (5, 1, 63, 64, 65, 64, 130, 200)] + [LONG[100:117], LONG[200:203]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("m")
    return write_tiny(folder / "m.gguf", gain=2.0, n_ctx_train=512, causal=False)


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return Model.load(path, n_threads=1, n_ubatch=200, n_batch=200, n_ctx=300)


@pytest.fixture(scope="module")
def alone(model: Model) -> list[list[int]]:
    return [list(model.session.generate(p, 20, s)) for p, s in requests()]


def requests() -> list[tuple[list[int], SamplerSettings]]:
    return [(p, HOT if i % 2 else GREEDY) for i, p in enumerate(PROMPTS)]


def texts(engine: Engine, kick: bool = False) -> list[list[int]]:
    """What the requests get, all at once; kick: somebody loses the pages now and then."""
    ids = [engine.add(Request(p, 20, s)) for p, s in requests()]
    found: dict[int, list[int]] = {i: [] for i in ids}
    rng, steps = np.random.default_rng(0), 0
    while engine.has_work:
        for token in engine.step():
            assert token.id is not None
            found[token.request].append(token.id)
        steps += 1
        running = [j for j in engine._scheduler.running if j.n_rows]
        if kick and steps % 4 == 0 and len(running) > 1:
            engine._scheduler.preempt(running[int(rng.integers(len(running)))])
    return [found[i] for i in ids]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("n_seqs", "kick"), [(1, False), (4, False), (4, True), (10, False)])
def test_each_gets_what_it_gets_alone(
    model: Model, alone: list[list[int]], n_seqs: int, kick: bool, padded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if padded:
        monkeypatch.setattr(Planner, "buckets", lambda self, setup: buckets(setup.options))
    engine = Engine(model.with_options(n_threads=2), n_seqs=n_seqs)
    assert texts(engine, kick) == alone
    assert engine.stats.n_found == 0
    assert bool(engine.stats.n_preempted) == kick
    assert texts(engine, kick) == alone  # with the pages of the same prompts in the cache


def test_few_pages(model: Model, alone: list[list[int]]) -> None:
    engine = Engine(model, n_seqs=6, n_cache=384)
    assert texts(engine) == alone


def test_rows_that_are_too_few_for_two(model: Model) -> None:
    """Prompts wait for a run that has room for them, in their order."""
    engine = Engine(model, n_seqs=4)
    first, second, third = (engine.add(Request(LONG[:n], 3, GREEDY)) for n in (150, 60, 40))
    order: list[int] = []
    while engine.has_work:
        order += [t.request for t in engine.step() if t.index == 0]
    assert order == [first, second, third]


def test_prompts_that_do_not_fit_a_run(model: Model) -> None:
    engine = Engine(model, n_seqs=2)
    with pytest.raises(ContextError, match="201 tokens: this model reads a prompt in both direct"):
        engine.add(Request(LONG[:201], 3))
    with pytest.raises(ContextError, match="201 tokens"):
        engine.add(EmbedRequest(LONG[:201]))
    with pytest.raises(ValueError, match="prompt_logprobs: this model reads a prompt in both"):
        engine.add(Request(LONG[:9], 3, prompt_logprobs=True))


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings(model: Model, pooling: str) -> None:
    """Of many texts at once as of each by itself, and of all tokens' sight of each other."""
    several = model.embed(PROMPTS, pooling)  # type: ignore[arg-type]
    for p, vector in zip(PROMPTS, several, strict=True):
        assert np.array_equal(model.embed([p], pooling)[0], vector)  # type: ignore[arg-type]
    first = [LONG[:30], [*LONG[:29], 7]]
    rows = [model.session.logits(p)[0] for p in first]
    assert not np.allclose(rows[0], rows[1])


def test_sessions_on_disk(model: Model, alone: list[list[int]], tmp_path: Path) -> None:
    prompt, settings = requests()[4]
    with model.with_options(n_threads=1) as other:
        session = other.session
        list(session.generate(prompt, 10, settings))
        session.save(tmp_path / "s")
        session.load(tmp_path / "s")
        assert list(session.generate(prompt, 20, settings)) == alone[4]
