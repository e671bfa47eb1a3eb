"""Sliding windows through sessions and the engine: pages are given back and nothing changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.model import Model
from gguflow.engine.sampling import GREEDY, SamplerSettings
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request

WINDOW = 100
HOT = SamplerSettings(temperature=1.2, seed=3)


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Model:
    """All layers with a window, and every other one."""
    path: Path = tmp_path_factory.mktemp("m") / "m.gguf"
    keys = {".attention.sliding_window": WINDOW}
    return Model.load(
        write_tiny(path, request.param, gain=2.0, keys=keys, n_ctx_train=1024),
        n_threads=1,
        n_ubatch=32,
    )


def ids_of(n: int) -> list[int]:
    return np.random.default_rng(n).integers(5, 90, n).tolist()


def test_few_pages_are_enough(model: Model) -> None:
    n_pages = model.cache_size().n_pages
    assert n_pages[f"window{WINDOW}"] == 4  # 131 positions, wherever they begin
    ids = ids_of(700)
    expected = model.with_options(n_ubatch=1024).new_session().logits(ids)
    found = model.new_session().logits(ids)
    np.testing.assert_array_equal(found, expected)


def test_generation_follows_the_logits(model: Model) -> None:
    ids = ids_of(400)
    made = list(model.new_session().generate(ids, 150, GREEDY))
    logits = model.with_options(n_ubatch=1024).new_session().logits([*ids, *made[:-1]])
    assert made == logits[len(ids) - 1 :].argmax(-1).tolist()


@pytest.mark.parametrize("keep", [0, 100, 399, 520])
def test_a_session_goes_back_further_than_its_pages(model: Model, keep: int) -> None:
    ids = ids_of(600)
    session = model.new_session()
    session.prefill(ids, None, "none")
    session.rewind(keep)
    assert session.tokens == ids[:keep]
    found = session.prefill([7, 8, 9], None, "last")[0]
    assert session.tokens == [*ids[:keep], 7, 8, 9]
    expected = model.with_options(n_ubatch=1024).new_session().logits([*ids[:keep], 7, 8, 9])
    np.testing.assert_array_equal(found[0], expected[-1])


def test_requests_together(model: Model) -> None:
    shared = ids_of(300)
    requests = [Request([*shared[: 290 - 50 * i], *ids_of(7 * i + 1)], 120, replace(HOT, seed=i))
                for i in range(5)]  # fmt: skip
    engine = Engine(model, n_seqs=3, n_cache=1024)
    found: dict[int, list[int]] = {engine.add(r): [] for r in (*requests, requests[0])}
    while engine.has_work:
        for token in engine.step():
            assert token.id is not None
            found[token.request].append(token.id)
    for i, r in enumerate([*requests, requests[0]]):
        assert found[i] == list(model.new_session().generate(r.ids, 120, r.settings))
    assert engine.stats.n_available == engine.stats.n_pages
