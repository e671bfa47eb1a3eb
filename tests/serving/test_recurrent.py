"""Recurrent layers through sessions and the engine: states are kept, copied and gone back to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.model import Model
from gguflow.engine.planning import Planner, buckets
from gguflow.engine.sampling import GREEDY, SamplerSettings
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.models.batch import StateLayer

EVERY = 1024  # tokens from one copy of a state to the next
HOT = SamplerSettings(temperature=1.2, seed=3)


@pytest.fixture(scope="module", params=["mamba2", "qwen3next"])
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Model:
    """Without any attention, and with it in one layer of three."""
    path: Path = tmp_path_factory.mktemp("m") / "m.gguf"
    write_tiny(path, request.param, gain=2.0, n_ctx_train=4096)
    return Model.load(path, n_threads=1, n_ubatch=128)


def ids_of(n: int) -> list[int]:
    return np.random.default_rng(n).integers(5, 90, n).tolist()


def test_what_layers_keep(model: Model) -> None:
    layers = [model.arch.cache(i) for i in range(model.hp.n_layer)]
    recurrent = [layer for layer in layers if isinstance(layer, StateLayer)]
    r = model.hp.recurrent
    assert r is not None and recurrent
    for layer in recurrent:
        assert layer.sizes == {
            "conv": (r.n_conv - 1) * (r.n_inner + 2 * r.n_group * r.n_state),
            "memory": r.n_head * r.head_dim * r.n_state,
        }


@pytest.mark.parametrize("n", [1, 7, 128, 1024])
def test_pieces_do_not_matter(model: Model, n: int) -> None:
    ids = ids_of(1200)
    expected = model.with_options(n_ubatch=4096).new_session().logits(ids)
    found = model.with_options(n_ubatch=n).new_session().logits(ids)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("keep", [0, 100, EVERY, EVERY + 1, 1500])
def test_a_session_goes_back(model: Model, keep: int) -> None:
    ids = ids_of(1600)
    session = model.new_session()
    session.prefill(ids, None, "none")
    session.rewind(keep)
    assert session.tokens == ids[:keep]
    found = session.prefill([7, 8, 9], None, "last")[0]
    expected = model.new_session().logits([*ids[:keep], 7, 8, 9])
    np.testing.assert_array_equal(found[0], expected[-1])


def test_generation_follows_the_logits(model: Model) -> None:
    ids = ids_of(70)
    made = list(model.new_session().generate(ids, 40, GREEDY))
    logits = model.new_session().logits([*ids, *made[:-1]])
    assert made == logits[len(ids) - 1 :].argmax(-1).tolist()


@pytest.mark.parametrize("padded", [False, True])
def test_requests_together(model: Model, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = ids_of(300)
    requests = [Request([*shared[: 290 - 50 * i], *ids_of(7 * i + 1)], 40, replace(HOT, seed=i))
                for i in range(5)]  # fmt: skip
    alone = [list(model.new_session().generate(r.ids, 40, r.settings)) for r in requests]
    if padded:  # as a device has its plans
        monkeypatch.setattr(Planner, "buckets", lambda self, setup: buckets(setup.options))
    engine = Engine(model.with_options(n_ubatch=96), n_seqs=3, n_cache=1024)
    found: dict[int, list[int]] = {engine.add(r): [] for r in (*requests, requests[0])}
    while engine.has_work:
        for token in engine.step():
            assert token.id is not None
            found[token.request].append(token.id)
    assert list(found.values()) == [*alone, alone[0]]
    assert engine.stats.n_available == engine.stats.n_pages


def test_a_prefix_is_found_where_a_state_was_copied(model: Model) -> None:
    ids = ids_of(EVERY + 200)
    others = [*ids[: EVERY + 100], *ids_of(50)]
    engine = Engine(model, n_seqs=2, n_cache=8192)
    texts = []
    for prompt in (ids, others):
        engine.add(Request(prompt, 20, HOT))
        text = []
        while engine.has_work:
            text += [token.id for token in engine.step()]
        texts.append(text)
    assert engine.stats.n_found == EVERY
    assert texts[1] == list(model.new_session().generate(others, 20, HOT))


def test_a_plan_has_no_loop_past_a_stop(model: Model) -> None:
    """Steps past a stop would stay in the state."""
    assert model.new_session().bound_plan(1, "last", True).token_loop is None
