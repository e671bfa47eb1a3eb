"""Recurrent layers through sessions and the engine: states are kept, copied and gone back to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stand_in_loop import Loop, install
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


# -- a device that goes on by itself ---------------------------------------------------------------


@pytest.mark.parametrize("n", [40, EVERY - 30])
@pytest.mark.parametrize("taken", [1, 9, 45])
def test_a_session_goes_on_from_what_was_taken(
    model: Model, n: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device has made more tokens by then, which its states have seen."""
    ids = ids_of(n)
    made = list(model.new_session().generate(ids, 60, HOT))
    longer = [*ids, *made[:taken], 7]
    expected = list(model.new_session().generate(longer, 60, HOT))
    install(monkeypatch)
    session = model.new_session()
    text = session.generate(ids, 60, HOT)
    assert [next(text) for _ in range(taken)] == made[:taken]
    assert list(session.generate(longer, 60, HOT)) == expected
    assert sum(loop.launched - loop.waited for loop in Loop.made) >= (taken > 1)
    stop = made[taken - 1]
    before = made.index(stop)
    assert list(session.generate(ids, 60, HOT, [stop])) == made[:before]
    tokens = session.tokens
    assert tokens == [*ids, *made[:before]][: len(tokens)]
    logits = session.step([8, 9], "last")[0][0].copy()
    np.testing.assert_array_equal(logits, model.new_session().logits([*tokens, 8, 9])[-1])


def test_an_interrupted_session_goes_on(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ids_of(50)
    expected = list(model.new_session().generate(ids, 60, HOT))
    install(monkeypatch)
    session = model.new_session()
    text = session.generate(ids, 60, HOT)
    assert [next(text) for _ in range(20)] == expected[:20]
    Loop.made[-1].fails = True
    with pytest.raises(KeyboardInterrupt):
        next(text)
    assert list(session.generate(ids, 60, HOT)) == expected


@pytest.mark.parametrize("interrupted", [False, True])
def test_requests_whose_tokens_a_device_makes(
    model: Model, interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the place where states are copied, with different ends."""
    lengths = (EVERY - 20, 30, 7, EVERY - 60, 200)
    requests = [Request(ids_of(n), 50 + 9 * i, replace(HOT, seed=i))
                for i, n in enumerate(lengths)]  # fmt: skip
    alone = [list(model.new_session().generate(r.ids, r.max_tokens, r.settings)) for r in requests]
    stops = [frozenset({text[-10 * i - 1]}) for i, text in enumerate(alone)]
    requests = [replace(r, stop=stop) for r, stop in zip(requests, stops, strict=True)]
    install(monkeypatch)
    engine = Engine(model.with_options(n_ubatch=96), n_seqs=3, n_cache=8192)
    for _ in range(2):  # from the copies that the first time has left
        found: dict[int, list[int]] = {engine.add(r): [] for r in requests}
        n_steps = 0
        while engine.has_work:
            n_steps += 1
            if interrupted and n_steps % 11 == 0 and engine.runs_ahead:
                Loop.made[-1].fails = True
            try:
                done = engine.step()
            except KeyboardInterrupt:
                continue
            for token in done:
                if token.finish != "stop" and token.id is not None:
                    found[token.request].append(token.id)
        for text, mine, stop in zip(alone, found.values(), stops, strict=True):
            assert mine == text[: text.index(next(iter(stop)))]
        assert engine.stats.n_available == engine.stats.n_pages
    assert sum(loop.waited for loop in Loop.made) > 60
    assert (engine.stats.n_preempted > 0) == interrupted
