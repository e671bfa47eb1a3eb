"""Generation that runs ahead on the GPU gives the tokens of single steps."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.backends.cuda.token_loop import CAPACITY, CudaTokenLoop
from gguflow.engine.model import Model
from gguflow.engine.runtime import BoundPlan
from gguflow.engine.sampling import SamplerSettings

pytestmark = pytest.mark.gpu

CUDA = ("cuda", "cpu", "numpy")
PROMPT = [1, 40, 50, 60, 70, 80]
GREEDY = SamplerSettings(temperature=0.0)
SETTINGS = {
    "greedy": GREEDY,
    "usual": SamplerSettings(seed=3),
    "penalty": SamplerSettings(temperature=0.0, repeat_penalty=1.3),
    "all": SamplerSettings(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=4),
    "many": SamplerSettings(temperature=2.0, top_k=90, top_p=0.99, repeat_penalty=1.1, seed=5),
}


@pytest.fixture
def model(gpu: Any, tmp_path: Path) -> Model:
    return Model.load(write_tiny(tmp_path / "m.gguf", gain=2.0), backends=CUDA, n_ctx=256)


def stepwise(model: Model, prompt: list[int], n: int, settings: SamplerSettings) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoundPlan, "token_loop", None)
        return list(model.new_session().generate(prompt, n, settings))


def test_it_is_used(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    monkeypatch.setattr(
        CudaTokenLoop, "launch", lambda self, launch=CudaTokenLoop.launch: [launch(self),
                                                                            launched.append(1)]
    )  # fmt: skip
    list(model.new_session().generate(PROMPT, 30, GREEDY))
    assert len(launched) == 29


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("n", [4, 30, 2 * CAPACITY + 7])
def test_the_tokens_are_those_of_single_steps(model: Model, name: str, n: int) -> None:
    session = model.new_session()
    found = list(session.generate(PROMPT, n, SETTINGS[name]))
    assert len(found) == n
    assert found == stepwise(model, PROMPT, n, SETTINGS[name])
    assert session.tokens == [*PROMPT, *found[:-1]]


def test_a_second_generation_continues_the_first(model: Model) -> None:
    session = model.new_session()
    ids = list(PROMPT)
    for n in (20, 9, 33):
        found = list(session.generate(ids, n, SETTINGS["all"]))
        assert found == stepwise(model, ids, n, SETTINGS["all"])
        ids += found


def test_it_ends_with_the_context(model: Model) -> None:
    session = model.new_session()
    found = list(session.generate(PROMPT, -1, SETTINGS["all"]))
    assert len(PROMPT) + len(found) == model.options.n_ctx + 1
    assert found == stepwise(model, PROMPT, -1, SETTINGS["all"])


@pytest.mark.parametrize("n", [1, 3, 8, 20])
def test_stop_tokens(model: Model, n: int) -> None:
    plain = stepwise(model, PROMPT, 40, SETTINGS["all"])
    expected = plain[: plain.index(plain[n])]
    session = model.new_session()
    assert list(session.generate(PROMPT, 40, SETTINGS["all"], {plain[n]})) == expected
    longer = [*PROMPT, *expected, 33, 44]
    assert list(session.generate(longer, 20, GREEDY)) == stepwise(model, longer, 20, GREEDY)


def test_generators_left_early_and_sessions_thrown_away(model: Model) -> None:
    for taken in (1, 2, 5):
        session = model.new_session()
        tokens = session.generate(PROMPT, 100, SETTINGS["usual"])
        found = [next(tokens) for _ in range(taken)]
        tokens.close()
        longer = [*PROMPT, *found, 17]
        assert list(session.generate(longer, 9, GREEDY)) == stepwise(model, longer, 9, GREEDY)
        next(session.generate(PROMPT, 100, GREEDY))
        del session, tokens
        gc.collect()


def test_logits_and_turns_in_between(model: Model) -> None:
    session = model.new_session()
    a = session.generate(PROMPT, 40, SETTINGS["all"])
    b = session.generate([2, 3], 40, SETTINGS["usual"])
    found_a, found_b = [], []
    for _ in range(8):
        found_a += [next(a) for _ in range(4)]
        found_b += [next(b)]
        np.testing.assert_array_equal(
            session.logits(PROMPT)[-1], model.new_session().logits(PROMPT)[-1]
        )
    assert [*found_a, *a] == stepwise(model, PROMPT, 40, SETTINGS["all"])
    assert [*found_b, *b] == stepwise(model, [2, 3], 40, SETTINGS["usual"])
