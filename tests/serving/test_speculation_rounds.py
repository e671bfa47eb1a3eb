"""Rounds of guesses that follow each other on a device change no byte either. The device is one
whose steps end with what tests/stand_in_rounds.py says of `accept`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from stand_in_loop import install
from stand_in_rounds import RoundLoop, install_rounds, looked_up
from test_engine import pad
from test_speculation import alone, by_turns, guessed, prompts, run
from tiny_model import write_tiny
from waited_for import some_of

from gguflow.cli.load import bundled_model
from gguflow.engine.model import Model
from gguflow.engine.sampling import GREEDY, SamplerSettings
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.engine.serving.runner import Sampling
from gguflow.engine.serving.speculation import Line, Speculation
from gguflow.engine.serving.speculation_draft import DraftModel
from gguflow.engine.serving.speculation_lookup import Lookup
from gguflow.engine.serving.speculation_planted import Planted

NO_DRAWS = Sampling(*[np.zeros((1, 1))] * 3)


@pytest.fixture(scope="module")
def bundled() -> Model:
    return Model.load(bundled_model(), n_threads=1, n_ctx=256)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("m") / "m.gguf"
    return Model.load(write_tiny(path, gain=2.0, n_ctx_train=512), n_threads=1)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, bundled: Model, tiny: Model) -> list[RoundLoop]:
    """Plans as a device has them, with loops; returns those of rounds."""
    pad(monkeypatch)
    install(monkeypatch)
    monkeypatch.setattr("gguflow.engine.serving.runner.HOST_SPACE", "no space")
    monkeypatch.setattr("gguflow.engine.serving.speculation_following.MOST_LINES", 64)
    yield install_rounds(monkeypatch)
    bundled.speculate(None)
    tiny.speculate(None)


def n_rounds(loops: Sequence[RoundLoop]) -> int:
    return sum(loop.waited for loop in loops)


@pytest.mark.parametrize(
    ("adaptive", "n_seqs"), some_of({(False, 0), (False, 6), (True, 1)}, (False, True), (0, 1, 6))
)
def test_texts_that_are_looked_up_are_the_plain_ones(
    bundled: Model, device: list[RoundLoop], adaptive: bool, n_seqs: int
) -> None:
    requests = prompts(bundled, 12)
    expected = alone(bundled, requests)
    bundled.speculate(Speculation(lookup=True, most=5, adaptive=adaptive))
    found, drafting = guessed(bundled, requests, n_seqs)
    assert found == expected
    if not adaptive:
        # Of six texts it is seldom that half of the rows for guesses have one.
        assert n_rounds(device) > (3 if n_seqs == 6 else 10) and drafting.accepted > 10


@pytest.mark.parametrize(
    ("kind", "n_seqs"),
    some_of({("always", 0), ("adaptive", 6), ("planted", 6)},
            ("always", "adaptive", "planted"), (0, 1, 6)),
)  # fmt: skip
def test_drafts(bundled: Model, device: list[RoundLoop], kind: str, n_seqs: int) -> None:
    """A smaller model's steps come before each round, whose guesses are its own or planted."""
    draft = bundled.load_draft("bundled")
    requests = prompts(bundled, 12)
    expected = alone(bundled, requests)
    if kind == "planted":
        texts = [[*r.ids, *text] for r, text in zip(requests, expected, strict=True)]
        inner = DraftModel(draft, bundled.with_options(n_seqs=max(1, n_seqs)))
        planted = Planted(texts, 0.7, bundled.hp.n_vocab, inner=inner)
        bundled.speculate(Speculation(drafter=planted, most=4, adaptive=False))
    else:
        bundled.speculate(Speculation(draft=draft, most=4, adaptive=kind == "adaptive"))
    found, drafting = guessed(bundled, requests, n_seqs)
    assert found == expected
    if kind != "adaptive":
        assert n_rounds(device) > (5 if n_seqs == 6 else 50) and drafting.accepted > 100
        assert all(loop.depth == 4 for loop in device if loop.waited)
        assert sum(loop.drafted for loop in device) == 4 * sum(loop.launched for loop in device)


def test_a_draft_guesses_on_a_device_what_it_guesses_on_the_host(
    bundled: Model, device: list[RoundLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = bundled.load_draft("bundled")
    (request,) = prompts(bundled, 1)
    bundled.speculate(Speculation(draft=draft, most=3, adaptive=False))
    found, drafting = guessed(bundled, [request], 1)
    assert n_rounds(device) > 5
    monkeypatch.setattr("gguflow.engine.serving.speculation_following.MOST_LINES", 0)
    assert guessed(bundled, [request], 1) == (found, drafting)


@pytest.mark.parametrize(
    ("share", "n_seqs"),
    some_of({(0.0, 5), (0.5, 0), (0.5, 5), (0.9, 1), (0.9, 5), (1.0, 0), (1.0, 5)},
            (0.0, 0.5, 0.9, 1.0), (0, 1, 5)),
)  # fmt: skip
def test_planted_guesses(tiny: Model, device: list[RoundLoop], share: float, n_seqs: int) -> None:
    """Greedy, hot, and penalized over more tokens than a page has; of lengths that do not end
    together."""
    rng = np.random.default_rng(3)
    requests = []
    for i in range(9):
        ids = rng.integers(1, 90, int(rng.integers(1, 60))).tolist()
        hot = SamplerSettings(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=i)
        penalized = SamplerSettings(temperature=1.5, seed=i, repeat_penalty=1.3, repeat_last_n=200)
        requests.append(Request(ids, int(rng.integers(50, 300)), (GREEDY, hot, penalized)[i % 3]))
    expected = alone(tiny, requests)
    texts = [[*r.ids, *text] for r, text in zip(requests, expected, strict=True)]
    planted = Planted(texts, share, tiny.hp.n_vocab)
    tiny.speculate(Speculation(drafter=planted, most=6, adaptive=False))
    found, drafting = guessed(tiny, requests, n_seqs)
    assert found == expected
    assert n_rounds(device) > 50
    if share == 1.0:
        assert drafting.wasted == 0 and drafting.accepted > 500
    elif share == 0.0:
        assert drafting.accepted == 0
    else:  # until the first that is wrong, of six
        p = sum(share**i for i in range(1, 7)) / 6
        assert abs(drafting.acceptance - p) < 0.12


def test_few_pages_cancellations_and_a_stop_within_a_round(
    tiny: Model, device: list[RoundLoop]
) -> None:
    rng = np.random.default_rng(5)
    requests = [
        Request(rng.integers(1, 90, 20 + 7 * i).tolist(), 150 + i, SamplerSettings(seed=i))
        for i in range(10)
    ]
    expected = alone(tiny, requests)
    stop = expected[2][100]
    requests[2] = Request(requests[2].ids, 150, requests[2].settings, frozenset({stop}))
    expected[2] = expected[2][: expected[2].index(stop)]
    texts = [[*r.ids, *text] for r, text in zip(requests, alone(tiny, requests), strict=True)]
    planted = Planted(texts, 0.8, tiny.hp.n_vocab)
    tiny.speculate(Speculation(drafter=planted, most=7, adaptive=False))
    engine = Engine(tiny, n_seqs=4, n_cache=64 * 12)
    ids = [engine.add(r) for r in requests]
    found: dict[int, list[int]] = {i: [] for i in ids}
    step, was_ahead = 0, False
    while engine.has_work:
        step += 1
        if step in (9, 40):
            engine.cancel(ids[3] if step == 9 else ids[5])
        for token in engine.step():
            if token.finish != "stop" and token.id is not None:
                found[token.request].append(token.id)
        was_ahead = was_ahead or engine.runs_ahead
    for k, (i, text) in enumerate(zip(ids, expected, strict=True)):
        assert found[i] == (text[: len(found[i])] if k in (3, 5) else text)
    assert was_ahead and n_rounds(device) > 20
    assert engine.stats.n_available == engine.stats.n_pages


def test_the_context_fills_to_the_last_token(tiny: Model, device: list[RoundLoop]) -> None:
    small = tiny.with_options(n_ctx=128)
    requests = [Request([3] * 20, -1, GREEDY), Request([5] * 64, -1, GREEDY)]
    expected = alone(small, requests)
    assert [len(text) for text in expected] == [109, 65]
    texts = [[*r.ids, *text] for r, text in zip(requests, expected, strict=True)]
    small.speculate(Speculation(drafter=Planted(texts, 0.9, 96), most=7, adaptive=False))
    assert run(Engine(small, n_seqs=2), requests) == expected
    assert alone(small, requests) == expected
    assert n_rounds(device) > 5


def test_generations_that_take_turns_on_a_session(bundled: Model, device: list[RoundLoop]) -> None:
    requests = prompts(bundled, 4)
    expected = alone(bundled, requests)
    bundled.speculate(Speculation(lookup=True, most=4, adaptive=False))
    found = by_turns(bundled, requests, 8)
    assert found == expected


def test_rounds_go_on_when_one_of_several_has_ended(tiny: Model, device: list[RoundLoop]) -> None:
    requests = [Request([9, 8, 7 + i], (25, 90, 90)[i], SamplerSettings(seed=i)) for i in range(3)]
    expected = alone(tiny, requests)
    texts = [[*r.ids, *text] for r, text in zip(requests, expected, strict=True)]
    tiny.speculate(Speculation(drafter=Planted(texts, 1.0, 96), most=3, adaptive=False))
    engine = Engine(tiny, n_seqs=3)
    ids = [engine.add(r) for r in requests]
    found: dict[int, list[int]] = {i: [] for i in ids}
    ahead = []
    while engine.has_work:
        for t in engine.step():
            found[t.request] += [] if t.id is None else [t.id]
            ahead += [engine.runs_ahead] if t.finish else []
    assert [found[i] for i in ids] == expected
    assert ahead == [True, False, False]
    assert engine.stats.n_available == engine.stats.n_pages


def test_an_interrupted_round_is_made_again(tiny: Model, device: list[RoundLoop]) -> None:
    requests = [Request([7, 8, 9 + i], 120, SamplerSettings(seed=i)) for i in range(3)]
    expected = alone(tiny, requests)
    texts = [[*r.ids, *text] for r, text in zip(requests, expected, strict=True)]
    tiny.speculate(Speculation(drafter=Planted(texts, 0.7, 96), most=3, adaptive=False))
    engine = Engine(tiny, n_seqs=3)
    ids = [engine.add(r) for r in requests]
    found: dict[int, list[int]] = {i: [] for i in ids}
    n = step = 0
    while engine.has_work:
        step += 1
        for loop in device:
            loop.fails = step % 7 == 0
        try:
            tokens = engine.step()
        except KeyboardInterrupt:
            n += 1
            continue
        for t in tokens:
            found[t.request] += [] if t.id is None else [t.id]
    assert n > 2 and [found[i] for i in ids] == expected


def test_guesses_that_never_come_true_end_soon(tiny: Model, device: list[RoundLoop]) -> None:
    (text,) = alone(tiny, [Request([1, 40, 50], 300, GREEDY)])
    tiny.speculate(Speculation(drafter=Planted([[1, 40, 50, *text]], 0.0, 96), most=8))
    engine = Engine(tiny, n_seqs=1)
    assert run(engine, [Request([1, 40, 50], 300, GREEDY)]) == [text]
    assert engine.stats.drafting.rounds < 40


@pytest.mark.parametrize("n_words", [2, 5, 90])
def test_what_a_device_looks_up_is_what_the_host_does(n_words: int) -> None:
    rng = np.random.default_rng(n_words)
    lookup = Lookup()
    for key in range(20):
        text = rng.integers(0, n_words, int(rng.integers(1, 300))).tolist()
        line = Line(key, 0, text, 1000)
        (found,) = lookup.draft([line], [9], NO_DRAWS)
        assert looked_up(np.array(text), 9) == found
