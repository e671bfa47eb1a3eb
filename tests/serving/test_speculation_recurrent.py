"""Guesses of models with a recurrent state, which wrong ones have changed when they are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_speculation import HOT, Fixed, alone, run
from tiny_model import write_tiny

from gguflow.engine.model import Model
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.engine.serving.speculation import Speculation


@pytest.fixture(scope="module", params=["mamba2", "qwen3next"])
def recurrent(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Model:
    path: Path = tmp_path_factory.mktemp("m") / "m.gguf"
    write_tiny(path, request.param, gain=2.0, n_ctx_train=2048)
    return Model.load(path, n_threads=1, n_ubatch=128)


def recurrent_requests() -> list[Request]:
    """Two of them generate past the place where their state is copied."""
    rng = np.random.default_rng(5)
    return [
        Request(rng.integers(5, 90, n).tolist(), 40, replace(HOT, seed=i, temperature=1.2))
        for i, n in enumerate((30, 1010, 7, 1003))
    ]


@pytest.mark.parametrize("share", [0.0, 0.7, 1.0])
def test_a_recurrent_state_takes_wrong_guesses_back(recurrent: Model, share: float) -> None:
    requests = recurrent_requests()
    expected = alone(recurrent, requests)
    texts = [[*r.ids, *text] for r, text in zip(requests, expected, strict=True)]
    model = recurrent.with_options(n_seqs=3)
    model.speculate(Speculation(drafter=Fixed(texts, share, 96), most=6, adaptive=False))
    engine = Engine(model)
    assert run(engine, requests) == expected
    assert engine.stats.drafting.rounds > 10
    assert run(engine, requests) == expected  # from the copies of states that it has made
    assert alone(model, requests) == expected


def test_generations_that_take_turns_on_a_recurrent_state(recurrent: Model) -> None:
    requests = recurrent_requests()[:3]
    expected = alone(recurrent, requests)
    texts = [[*r.ids, *text] for r, text in zip(requests, expected, strict=True)]
    model = recurrent.with_options()
    model.speculate(Speculation(drafter=Fixed(texts, 0.8, 96), most=6, adaptive=False))
    session = model.new_session()
    turns = [session.generate(r.ids, r.max_tokens, r.settings) for r in requests]
    found: list[list[int]] = [[] for _ in turns]
    for i in (0, 1, 0, 2, 0, 1, 1, 0, 2):
        found[i] += [token for _, token in zip(range(5), turns[i], strict=False)]
    for i, text in enumerate(expected):
        assert found[i] == text[: len(found[i])]
    # What goes on from the tokens that were taken, while others are known already.
    before = [*requests[2].ids, *found[2]]
    assert session.tokens == before[:-1]
    logits = session.step([before[-1]], "last")[0][0].copy()
    np.testing.assert_array_equal(logits, model.new_session().logits(before)[-1])


@pytest.mark.parametrize("p_min", [0.0, 0.3])
@pytest.mark.parametrize("n_seqs", [1, 3])
def test_a_recurrent_draft_goes_back_to_where_it_was_right(
    recurrent: Model, n_seqs: int, p_min: float
) -> None:
    """Of itself every guess comes true, unless its state has seen what was not guessed in the end,
    as tokens that it was not sure of (p_min)."""
    requests = recurrent_requests()
    expected = alone(recurrent, requests)
    model, draft = recurrent.with_options(n_seqs=n_seqs), recurrent.with_options()
    model.speculate(Speculation(draft=draft, most=5, p_min=p_min, adaptive=False))
    engine = Engine(model)
    assert run(engine, requests) == expected
    drafting = engine.stats.drafting
    assert drafting.accepted == drafting.drafted > 10
    assert alone(model, requests) == expected


@pytest.mark.parametrize("lookup", [False, True])
def test_a_recurrent_draft_that_is_mostly_wrong(
    recurrent: Model, lookup: bool, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "m.gguf", "qwen3next", seed=9, gain=2.0, n_ctx_train=2048)
    requests = recurrent_requests()
    expected = alone(recurrent, requests)
    model, draft = recurrent.with_options(n_seqs=2), Model.load(path, n_threads=1)
    model.speculate(Speculation(draft=draft, lookup=lookup, most=3, adaptive=False))
    assert run(Engine(model), requests) == expected
