"""Rounds of guesses that a GPU makes by itself (accept.cu, draft.cu) change no token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from test_speculation import alone, guessed, prompts

from gguflow.cli.load import bundled_model
from gguflow.engine.backends.cuda.token_loop import CudaTokenLoop
from gguflow.engine.limits import ALL_LAYERS
from gguflow.engine.model import Model
from gguflow.engine.serving.speculation import Speculation
from gguflow.engine.serving.speculation_draft import DraftModel
from gguflow.engine.serving.speculation_planted import Planted

pytestmark = pytest.mark.gpu

PATH = bundled_model()
N = 20  # requests


@pytest.fixture(scope="module")
def model(gpu: Any) -> Model:
    return Model.load(PATH, n_gpu_layers=ALL_LAYERS, n_ctx=256, equal_bits=True)


@pytest.fixture(scope="module")
def expected(model: Model) -> list[list[int]]:
    return alone(model, prompts(model, N))


@pytest.fixture(autouse=True)
def quiet(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("gguflow.engine.serving.speculation_following.MOST_LINES", 128)
    yield
    model.speculate(None)


def check(model: Model, expected: list[list[int]], n_seqs: int) -> Any:
    """What came of guesses, after a look at what was generated."""
    found, drafting = guessed(model, prompts(model, N), n_seqs)
    assert found == expected
    return drafting


@pytest.mark.parametrize("n_seqs", [0, 1, 6])
def test_texts_that_are_looked_up(model: Model, expected: list[list[int]], n_seqs: int) -> None:
    model.speculate(Speculation(lookup=True, most=5, adaptive=False))
    assert check(model, expected, n_seqs).accepted > 10


@pytest.mark.parametrize("n_seqs", [0, 1, 6])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_planted_guesses(
    model: Model, expected: list[list[int]], share: float, n_seqs: int
) -> None:
    texts = [[*r.ids, *t] for r, t in zip(prompts(model, N), expected, strict=True)]
    planted = Planted(texts, share, model.hp.n_vocab)
    model.speculate(Speculation(drafter=planted, most=6, adaptive=False))
    drafting = check(model, expected, n_seqs)
    if share == 1.0:
        assert drafting.accepted > 500
    elif share == 0.0:
        assert drafting.accepted == 0


@pytest.mark.parametrize("n_seqs", [0, 1, 6])
@pytest.mark.parametrize("kind", ["own", "planted"])
def test_drafts(
    model: Model,
    expected: list[list[int]],
    kind: str,
    n_seqs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A smaller model guesses, between rounds and without the host."""
    depths: list[int] = []
    launch = CudaTokenLoop.launch

    def launched(self: CudaTokenLoop) -> None:
        launch(self)
        depths.append(self.depth)

    monkeypatch.setattr(CudaTokenLoop, "launch", launched)
    draft = model.load_draft("bundled")
    if kind == "own":
        model.speculate(Speculation(draft=draft, most=4, adaptive=False))
    else:
        texts = [[*r.ids, *t] for r, t in zip(prompts(model, N), expected, strict=True)]
        inner = DraftModel(draft, model.with_options(n_seqs=max(1, n_seqs)))
        planted = Planted(texts, 0.7, model.hp.n_vocab, inner=inner)
        model.speculate(Speculation(drafter=planted, most=4, adaptive=False))
    drafting = check(model, expected, n_seqs)
    assert drafting.accepted > 150 and drafting.wasted > 0
    assert depths.count(4) > (5 if n_seqs == 6 else 50)
