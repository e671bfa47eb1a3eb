"""Speculation changes no byte of any output, whatever is guessed and however much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stand_in_loop import Loop, install
from test_engine import pad
from tiny_model import write_tiny
from waited_for import some_of

from gguflow.cli.load import bundled_model
from gguflow.engine.load import ModelSource
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.requantize import native_converter, requantize
from gguflow.engine.sampling import GREEDY, SamplerSettings
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.engine.serving.runner import Sampling
from gguflow.engine.serving.speculation import Drafting, Line, Speculation
from gguflow.engine.serving.speculation_draft import DraftModel
from gguflow.engine.serving.speculation_planted import Planted
from gguflow.models.mixes import find_mix

HOT = SamplerSettings(temperature=0.8, seed=1)
BEGINNINGS = (
    "Once upon a time", "The King said to his", "A fox and a crow", "In the wood there",
    "Her mother", "'I will not go,' said", "The old woman", "There was once a", "Far away in the",
    "One morning",
)  # fmt: skip


class Fixed:
    """Guesses made up from what is known to come: right ones with a probability."""

    took = 0.0

    def __init__(self, texts: Sequence[Sequence[int]], share: float, n_vocab: int) -> None:
        self._texts, self._share, self._n_vocab = texts, share, n_vocab
        self._rng = np.random.default_rng(0)

    def draft(
        self, lines: Sequence[Line], lengths: Sequence[int], sampling: Sampling
    ) -> list[list[int]]:
        return [self._line(line, n) for line, n in zip(lines, lengths, strict=True)]

    def seconds(self, n_lines: int) -> float:
        return 0.0

    def forget(self, keys: set[int]) -> None:
        pass

    def _line(self, line: Line, n: int) -> list[int]:
        n = int(self._rng.integers(n + 1))
        (text,) = {tuple(t) for t in self._texts if list(t[: len(line.tokens)]) == line.tokens}
        right = text[len(line.tokens) : len(line.tokens) + n]
        wrong = self._rng.integers(0, self._n_vocab, len(right))
        is_right = self._rng.random(len(right)) < self._share
        return np.where(is_right, right, wrong).tolist()


@pytest.fixture(scope="module")
def bundled() -> Model:
    return Model.load(bundled_model(), n_threads=1, n_ctx=256)


@pytest.fixture(scope="module")
def draft(bundled: Model) -> Model:
    return bundled.load_draft("bundled")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("m") / "m.gguf"
    return Model.load(write_tiny(path, gain=2.0, n_ctx_train=512), n_threads=1)


@pytest.fixture(autouse=True)
def quiet(bundled: Model, tiny: Model) -> Iterator[None]:
    """Every test says by itself how its models guess."""
    yield
    bundled.speculate(None)
    tiny.speculate(None)


def run(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
    """What the requests get, without stop tokens."""
    ids = [engine.add(r) for r in requests]
    found: dict[int, list[int]] = {i: [] for i in ids}
    while engine.has_work:
        for token in engine.step():
            assert token.index == len(found[token.request]) or token.finish == "stop"
            if token.finish != "stop" and token.id is not None:
                found[token.request].append(token.id)
    assert engine.stats.n_available == engine.stats.n_pages
    return [found[i] for i in ids]


def guessed(
    model: Model, requests: Sequence[Request], n_seqs: int
) -> tuple[list[list[int]], Drafting]:
    """What an engine of n_seqs gives, or a session where that is 0, and what came of guesses."""
    if n_seqs:
        engine = Engine(model, n_seqs=n_seqs)
        return run(engine, requests), engine.stats.drafting
    session = model.new_session()
    found = [list(session.generate(r.ids, r.max_tokens, r.settings, r.stop)) for r in requests]
    return found, session.drafting


def by_turns(model: Model, requests: Sequence[Request], most: int) -> list[list[int]]:
    """What one session gives to generations of which now this, now that has a few tokens."""
    session = model.new_session()
    turns = [session.generate(r.ids, r.max_tokens, r.settings, r.stop) for r in requests]
    found: list[list[int]] = [[] for _ in turns]
    rng = np.random.default_rng(1)
    left = {*range(len(turns))}
    while left:
        i = int(rng.choice(sorted(left)))
        for _ in range(int(rng.integers(1, most + 1))):
            token = next(turns[i], None)
            if token is None:
                left.discard(i)
                break
            found[i].append(token)
    return found


def prompts(model: Model, n: int) -> list[Request]:
    """Requests that differ in their beginnings, seeds and settings: greedy and at 0.8."""
    rng = np.random.default_rng(n)
    words = ("king", "queen", "fox", "wood", "gold", "witch", "sea", "little", "old", "the", "of")
    found = []
    for i in range(n):
        more = " ".join(rng.choice(words, int(rng.integers(0, 6))))
        ids = model.tokenizer.encode(f"{BEGINNINGS[i % len(BEGINNINGS)]} {more}".strip())
        settings = GREEDY if i % 2 else replace(HOT, seed=i)
        if i % 5 == 2:
            settings = replace(settings, repeat_penalty=1.15)
        stop = frozenset(model.tokenizer.eog_ids)
        found.append(Request(ids, int(rng.integers(20, 60)), settings, stop))
    return found


def any_prompts(model: Model, n: int, longest: int, most: int) -> list[Request]:
    """Requests of any tokens, up to `longest` of them, for up to `most` more: greedy and at 0.8."""
    rng = np.random.default_rng(5)
    return [
        Request(
            rng.integers(0, model.hp.n_vocab, int(rng.integers(1, longest + 1))).tolist(),
            int(rng.integers(most // 2, most + 1)),
            GREEDY if i % 2 else replace(HOT, seed=i),
        )
        for i in range(n)
    ]


def in_types(weights: str, source: ModelSource, options: Options) -> Model:
    """A model in the types of a mix."""
    model = Model(requantize(source, find_mix(weights), native_converter(2)), options)
    model.load_weights()
    return model


def alone(model: Model, requests: Sequence[Request]) -> list[list[int]]:
    session = model.new_session()
    return [list(session.generate(r.ids, r.max_tokens, r.settings, r.stop)) for r in requests]


# -- the same bytes --------------------------------------------------------------------------------

KINDS = {
    "draft": {"most": 4, "adaptive": False},
    "draft that is sure": {"most": 8, "adaptive": False, "p_min": 0.3},
    "lookup": {"lookup": True, "adaptive": False},
    "both": {"lookup": True, "most": 6, "adaptive": False},
    "at its own pace": {"lookup": True},
}


WAITED_FOR = {("draft", 0), ("draft that is sure", 7), ("both", 7), ("at its own pace", 7)}


@pytest.mark.parametrize(("kind", "n_seqs"), some_of(WAITED_FOR, KINDS, (0, 1, 7)))
def test_prompts_get_their_plain_texts(
    bundled: Model, draft: Model, kind: str, n_seqs: int, request: pytest.FixtureRequest
) -> None:
    """n_seqs: of an engine, where seven meet what one does; 0 for a session."""
    requests = prompts(bundled, 10)
    expected = alone(bundled, requests)
    settings = Speculation(draft=None if kind == "lookup" else draft, **KINDS[kind])
    bundled.speculate(settings)
    if not n_seqs:
        session = bundled.new_session()
        for r, text in zip(requests, expected, strict=True):
            assert list(session.generate(r.ids, r.max_tokens, r.settings, r.stop)) == text
        drafting = session.drafting
    else:
        engine = Engine(bundled, n_seqs=n_seqs)
        assert run(engine, requests) == expected
        drafting = engine.stats.drafting
    if not settings.adaptive:  # else it is as the times are
        assert drafting.accepted > 0 and drafting.wasted > 0
        assert drafting.acceptance > (0.4 if "sure" in kind else 0.02)


@pytest.mark.parametrize(
    "weights, n_prompts",
    [("", 50), *(pytest.param(t, 1000, marks=pytest.mark.slow) for t in ("", "F16", "Q4_0"))],
)
def test_many_prompts_get_their_plain_texts(
    bundled: Model, draft: Model, weights: str, n_prompts: int
) -> None:
    """weights: another type than the file's."""
    model = bundled
    if weights:
        model = in_types(weights, bundled.source, bundled.options)
    requests = prompts(model, n_prompts)
    expected = run(Engine(model, n_seqs=16), requests)
    model.speculate(Speculation(draft=draft, lookup=True, most=5, adaptive=False))
    engine = Engine(model, n_seqs=16)
    assert run(engine, requests) == expected
    assert engine.stats.drafting.accepted > 5 * n_prompts


def planted(
    model: Model, requests: Sequence[Request], expected: Sequence[Sequence[int]], n_seqs: int,
    inner: DraftModel | None = None,
) -> Drafting:  # fmt: skip
    """What came of guesses of which 0.7 are right, after a look at the texts. n_seqs, as `guessed`
    has it. inner: a draft that is run for its time."""
    texts = [[*r.ids, *t] for r, t in zip(requests, expected, strict=True)]
    drafter = Planted(texts, 0.7, model.hp.n_vocab, inner=inner)
    model.speculate(Speculation(drafter=drafter, most=6, adaptive=False))
    found, drafting = guessed(model, requests, n_seqs)
    assert found == expected, n_seqs
    return drafting


@pytest.mark.slow  # 5 and 16 GB of weights
@pytest.mark.parametrize("weights", ["Q4_0", "F16"])
def test_planted_guesses_of_a_large_shape(weights: str) -> None:
    """8B's. tests/gpu/test_many_prompts_gpu.py has it on a GPU."""
    model = Model.random(f"llama3-8b:{weights}", Options(n_ctx=128))
    requests = any_prompts(model, 50, 40, 16)
    expected = alone(model, requests)
    for n_seqs in (0, 16):
        drafting = planted(model, requests, expected, n_seqs)
        assert drafting.accepted > 200 and drafting.wasted > 50


@pytest.mark.parametrize(
    ("share", "n_cache"),
    some_of({(0.0, 512), (0.7, 0), (0.7, 512), (1.0, 0)}, (0.0, 0.7, 1.0), (0, 512)),
)
def test_planted_guesses_with_too_few_pages_and_cancellations(
    tiny: Model, share: float, n_cache: int
) -> None:
    rng = np.random.default_rng(3)
    requests = []
    for i in range(14):
        ids = rng.integers(1, 90, int(rng.integers(1, 60))).tolist()
        hot = SamplerSettings(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=i)
        penalized = replace(hot, repeat_penalty=1.3, repeat_last_n=200)
        requests.append(Request(ids, int(rng.integers(50, 200)), (GREEDY, hot, penalized)[i % 3]))
    expected = alone(tiny, requests)
    texts = [[*r.ids, *text] for r, text in zip(requests, expected, strict=True)]
    tiny.speculate(
        Speculation(drafter=Fixed(texts, share, tiny.hp.n_vocab), most=9, adaptive=False)
    )
    engine = Engine(tiny.with_options(n_ubatch=32), n_seqs=5, n_cache=n_cache)
    ids = [engine.add(r) for r in requests]
    found: dict[int, list[int]] = {i: [] for i in ids}
    cancelled = ids[3], ids[7]
    step = 0
    while engine.has_work:
        step += 1
        if step in (9, 20):
            engine.cancel(cancelled[step > 9])
        for token in engine.step():
            found[token.request] += [] if token.id is None else [token.id]
    for i, text in zip(ids, expected, strict=True):
        assert found[i] == (text[: len(found[i])] if i in cancelled else text)
    stats = engine.stats
    assert stats.n_available == stats.n_pages
    assert stats.drafting.acceptance == 1.0 if share == 1.0 else stats.drafting.acceptance < 0.75
    assert bool(n_cache) == bool(stats.n_preempted)


@pytest.mark.parametrize("loops", [False, True])
def test_preempted_where_generated_tokens_stand_apart(
    tiny: Model, monkeypatch: pytest.MonkeyPatch, loops: bool
) -> None:
    """As on a device: what was generated is computed again as single rows, and goes on with its
    own draws, whether they are guessed, made by a loop or one by one."""
    rng = np.random.default_rng(8)
    hot = SamplerSettings(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)
    requests = [
        Request(rng.integers(1, 90, 20 + i).tolist(), 60, replace(hot, seed=i, repeat_penalty=1.2))
        for i in range(6)
    ]
    expected = alone(tiny, requests)
    texts = [[*r.ids, *text] for r, text in zip(requests, expected, strict=True)]
    pad(monkeypatch)
    monkeypatch.setattr("gguflow.engine.serving.runner.HOST_SPACE", "no space")
    if loops:
        install(monkeypatch)
    fixed = Fixed(texts, 0.7, 96)
    for settings in (None, Speculation(drafter=fixed, most=5, adaptive=False)):
        tiny.speculate(settings)
        engine = Engine(tiny, n_seqs=4)
        ids = [engine.add(r) for r in requests]
        found: dict[int, list[int]] = {i: [] for i in ids}
        running, n_preempted = engine._scheduler.running, 0
        while engine.has_work:
            for token in engine.step():
                assert token.id is not None
                found[token.request].append(token.id)
            if rng.random() < 0.2:
                if engine._ahead is not None:
                    engine._ahead.stop()
                    continue
                for _ in range(min(len(running), 3)):
                    engine._scheduler.preempt(running[int(rng.integers(len(running)))])
                    n_preempted += 1
        assert list(found.values()) == expected
        assert n_preempted > 2
        assert (engine.stats.drafting.accepted > 50) == (settings is not None)


def test_a_stop_token_within_guesses_ends_the_text_there(tiny: Model) -> None:
    (made,) = alone(tiny, [Request([1, 40, 50], 40, GREEDY)])
    stop = made[20]
    texts = [[1, 40, 50, *made]]
    tiny.speculate(Speculation(drafter=Fixed(texts, 1.0, tiny.hp.n_vocab), adaptive=False))
    request = Request([1, 40, 50], 40, GREEDY, frozenset({stop}))
    assert run(Engine(tiny, n_seqs=2), [request]) == [made[: made.index(stop)]]
    assert alone(tiny, [request]) == [made[: made.index(stop)]]


def test_the_context_fills_to_the_last_token(tiny: Model) -> None:
    small = tiny.with_options(n_ctx=64)
    requests = [Request([3] * 50, -1, GREEDY), Request([5] * 64, -1, GREEDY)]
    expected = alone(small, requests)
    assert [len(text) for text in expected] == [15, 1]
    texts = [[*r.ids, *text] for r, text in zip(requests, expected, strict=True)]
    small.speculate(Speculation(drafter=Fixed(texts, 1.0, 96), most=32, adaptive=False))
    assert run(Engine(small, n_seqs=2), requests) == expected
    assert alone(small, requests) == expected


@pytest.mark.parametrize(
    ("adaptive", "n_seqs"), some_of({(False, 0), (False, 6), (True, 1)}, (False, True), (0, 1, 6))
)
def test_as_on_a_device(
    bundled: Model, draft: Model, monkeypatch: pytest.MonkeyPatch, adaptive: bool, n_seqs: int
) -> None:
    """Padded plans, and loops that make token after token: the draft's, and plain ones between."""
    requests = prompts(bundled, 9)
    expected = alone(bundled, requests)
    pad(monkeypatch)
    install(monkeypatch)
    monkeypatch.setattr("gguflow.engine.serving.runner.HOST_SPACE", "no space")
    bundled.speculate(Speculation(draft=draft, lookup=True, most=5, adaptive=adaptive))
    found, drafting = guessed(bundled, requests, n_seqs)
    assert found == expected
    assert any(loop.launched for loop in Loop.made)
    assert adaptive or drafting.accepted > 30


def test_generations_that_take_turns_on_a_session(bundled: Model, draft: Model) -> None:
    requests = prompts(bundled, 3)
    expected = alone(bundled, requests)
    bundled.speculate(Speculation(draft=draft, lookup=True, most=4, adaptive=False))
    found = by_turns(bundled, requests, 4)
    assert found == expected


def test_an_interrupted_step_is_done_again(
    bundled: Model, draft: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = prompts(bundled, 4)
    expected = alone(bundled, requests)
    bundled.speculate(Speculation(draft=draft, most=3, adaptive=False))
    engine = Engine(bundled, n_seqs=4)
    rng = np.random.default_rng(0)
    real, n = type(engine._runner)._go, 0

    def interrupted(self, *args):
        nonlocal n
        if rng.random() < 0.1:
            n += 1
            raise KeyboardInterrupt
        real(self, *args)

    monkeypatch.setattr(type(engine._runner), "_go", interrupted)
    ids = [engine.add(r) for r in requests]
    found: dict[int, list[int]] = {i: [] for i in ids}
    while engine.has_work:
        try:
            tokens = engine.step()
        except KeyboardInterrupt:
            continue
        for t in tokens:
            found[t.request] += [] if t.finish == "stop" or t.id is None else [t.id]
    assert n > 10 and [found[i] for i in ids] == expected


def test_tokens_chosen_on_the_host(bundled: Model, draft: Model) -> None:
    """Logarithms of probabilities, biases and other samplers, beside requests without them."""
    plain = prompts(bundled, 8)
    requests = [
        plain[0],
        replace(plain[1], logprobs=3),
        replace(plain[2], logit_bias={13: -5.0, 300: 2.0}),
        replace(plain[3], settings=SamplerSettings(seed=3, mirostat=2)),
        replace(plain[4], settings=SamplerSettings(seed=4, typical_p=0.7), logprobs=0),
        plain[5],
    ]

    def together() -> tuple[list[list[tuple]], Engine]:
        engine = Engine(bundled, n_seqs=4)
        ids = [engine.add(r) for r in requests]
        found: dict[int, list[tuple]] = {i: [] for i in ids}
        while engine.has_work:
            for t in engine.step():
                found[t.request].append((t.id, t.index, t.finish, t.logprob, t.top_logprobs))
        return [found[i] for i in ids], engine

    expected, _ = together()
    session = bundled.new_session()
    one_by_one = [list(session.choices(r)) for r in requests]
    bundled.speculate(Speculation(draft=draft, lookup=True, most=4, adaptive=False))
    found, engine = together()
    assert found == expected
    assert engine.stats.drafting.accepted > 20
    session = bundled.new_session()
    assert [list(session.choices(r)) for r in requests] == one_by_one


def test_a_processor_that_raises_ends_its_request_alone(bundled: Model, draft: Model) -> None:
    def raises(ids: Sequence[int], logits: np.ndarray) -> None:
        if len(ids) >= 30:
            raise ZeroDivisionError("enough")

    requests = [replace(r, stop=frozenset(), max_tokens=40) for r in prompts(bundled, 3)]
    requests[1] = replace(requests[1], processor=raises)
    expected = alone(bundled, [requests[0], replace(requests[1], processor=None), requests[2]])
    bundled.speculate(Speculation(draft=draft, lookup=True, most=6, adaptive=False))
    engine = Engine(bundled, n_seqs=3)
    ids = [engine.add(r) for r in requests]
    found: dict[int, list] = {i: [] for i in ids}
    while engine.has_work:
        for t in engine.step():
            found[t.request].append(t)
    n = 30 - len(requests[1].ids)
    assert [t.id for t in found[ids[1]]] == [*expected[1][:n], None]
    assert isinstance(found[ids[1]][-1].error, ZeroDivisionError)
    for i in (0, 2):
        assert [t.id for t in found[ids[i]]] == expected[i]
    session = bundled.new_session()
    made = []
    with pytest.raises(ZeroDivisionError):
        for choice in session.choices(requests[1]):
            made.append(choice.id)
    assert made == expected[1][:n]
