"""Model.generate_many: texts of many prompts, each as `generate` gives it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.model import Model
from gguflow.engine.prompt import ContextError
from gguflow.engine.sampling import SamplerSettings
from gguflow.models.base import ModelError

PROMPTS = ["abc", "Once upon a time", "abc", "x", "hello there"]
HOT = SamplerSettings(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=7)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("m") / "m.gguf"
    return Model.load(write_tiny(path, gain=2.0, n_ctx_train=256), n_threads=1)


def texts(model: Model, *args, **kwargs) -> list[str]:
    found = [""] * len(args[0])
    for i, piece in model.generate_many(*args, **kwargs):
        assert piece or piece.finish_reason
        found[i] += piece
    return found


@pytest.mark.parametrize("n_seqs", [None, 1, 3, 8])
def test_texts_are_those_of_generate(model: Model, n_seqs: int | None) -> None:
    expected = ["".join(model.generate(p, 30, HOT)) for p in PROMPTS]
    assert texts(model, PROMPTS, 30, HOT, n_seqs=n_seqs) == expected
    assert expected[0] == expected[2] != expected[1]


def test_each_prompt_may_have_settings_of_its_own(model: Model) -> None:
    settings = [replace(HOT, seed=i) for i in range(len(PROMPTS))]
    expected = ["".join(model.generate(p, 20, s)) for p, s in zip(PROMPTS, settings, strict=True)]
    assert texts(model, PROMPTS, 20, settings, n_seqs=4) == expected
    greedy = ["".join(model.generate(p, 20, temperature=0.0)) for p in PROMPTS]
    assert texts(model, PROMPTS, 20, settings, n_seqs=4, temperature=0.0) == greedy
    with pytest.raises(ValueError, match="5 settings for 1 prompts"):
        texts(model, PROMPTS[:1], 20, settings)


def test_token_ids_are_prompts_too(model: Model) -> None:
    ids = [model.tokenizer.encode(p) for p in PROMPTS]
    assert texts(model, ids, 20, HOT) == texts(model, PROMPTS, 20, HOT)
    assert texts(model, [], 20) == []


def test_pieces_come_in_turns(model: Model) -> None:
    order = [i for i, _ in model.generate_many(PROMPTS, 20, HOT, n_seqs=5)]
    assert set(order[:10]) == set(range(5))


def test_a_prompt_that_does_not_fit(model: Model) -> None:
    with pytest.raises(ContextError, match="257"):
        next(model.generate_many([[1] * 10, [1] * 257], 20))


def test_logits_that_are_not_finite(tmp_path: Path) -> None:
    bad = {"output_norm.weight": np.full(64, np.nan, np.float32)}
    broken = Model.load(write_tiny(tmp_path / "nan.gguf", weights=bad), n_threads=1)
    with pytest.raises(ModelError, match=r"nan\.gguf: prompt 0: the logits are not finite"):
        next(broken.generate_many(["a", "b"], 5, n_seqs=2))
