"""Engine: a request gets the text it gets alone, whatever runs beside it, and no page is lost."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stand_in_loop import Loop, install
from tiny_model import write_tiny
from waited_for import some_of

from gguflow.engine.compile import compile_graph
from gguflow.engine.graph import dtype_by_name
from gguflow.engine.model import Model
from gguflow.engine.planning import Planner, buckets
from gguflow.engine.profile import Profile
from gguflow.engine.prompt import ContextError
from gguflow.engine.sampling import GREEDY, SamplerSettings
from gguflow.engine.serving import scheduler
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request, Token
from gguflow.engine.serving.rows import Piece, rows_of
from gguflow.engine.serving.runner import Runner

HOT = SamplerSettings(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=1)
PROMPT = (1, 40, 50, 60, 70, 80)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("m")
    return write_tiny(folder / "m.gguf", gain=2.0, n_ctx_train=2304)


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return Model.load(path, n_threads=1)


def run(engine: Engine) -> dict[int, list[Token]]:
    """All tokens of all requests."""
    found: dict[int, list[Token]] = {}
    while engine.has_work:
        for token in engine.step():
            found.setdefault(token.request, []).append(token)
    return found


def pad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans in sizes, padded, as a device has them."""
    monkeypatch.setattr(Planner, "buckets", lambda self, setup: buckets(setup.options))


def text(tokens: list[Token]) -> list[int]:
    """What a session yields: without the stop token. Indices and ends are checked on the way."""
    assert [t.index for t in tokens] == list(range(len(tokens)))
    assert [t.finish is None for t in tokens] == [True] * (len(tokens) - 1) + [False]
    return [t.id for t in tokens if t.finish != "stop" and t.id is not None]


def alone(model: Model, r: Request) -> list[int]:
    return list(model.new_session().generate(r.ids, r.max_tokens, r.settings, r.stop))


def is_clean(engine: Engine) -> bool:
    """Whether every page is free or wanted by nobody."""
    return engine.stats.n_available == engine.stats.n_pages


# -- texts -----------------------------------------------------------------------------------------


def test_requests_together_get_what_they_get_alone(model: Model) -> None:
    requests = [
        Request(PROMPT, 20, GREEDY),
        Request(PROMPT, 30, HOT),
        Request([1, 5], 1, HOT),
        Request([7] * 100, 25, replace(HOT, seed=9, repeat_penalty=1.3)),
        Request([7] * 100, 25, replace(HOT, seed=9, repeat_penalty=1.3, repeat_last_n=200)),
        Request([9] * 600, 5, SamplerSettings(seed=3)),
    ]
    engine = Engine(model, n_seqs=4)
    ids = [engine.add(r) for r in requests]
    found = run(engine)
    for i, r in zip(ids, requests, strict=True):
        assert text(found[i]) == alone(model, r)
        assert found[i][-1].finish == "length"
    assert is_clean(engine)


def test_ends(model: Model) -> None:
    made = alone(model, Request(PROMPT, 12, GREEDY))
    stop = made[5]
    engine = Engine(model.with_options(n_ctx=64), n_seqs=3)
    stopped = engine.add(Request(PROMPT, 12, GREEDY, {stop}))
    full = engine.add(Request([3] * 60, -1, GREEDY))
    nothing = engine.add(Request(PROMPT, 0))
    filled = engine.add(Request([3] * 64, -1, GREEDY))
    found = run(engine)
    assert text(found[stopped]) == made[: made.index(stop)]
    assert (found[stopped][-1].id, found[stopped][-1].finish) == (stop, "stop")
    assert len(found[full]) == 5 and found[full][-1].finish == "length"
    assert len(found[filled]) == 1
    assert found[nothing] == [Token(nothing, None, 0, "length")]


def test_no_seed_is_one_drawn_at_random(model: Model) -> None:
    engine = Engine(model, n_seqs=4)
    for _ in range(4):
        engine.add(Request(PROMPT, 30, replace(HOT, seed=None)))
    assert len({tuple(text(t)) for t in run(engine).values()}) == 4


@pytest.mark.parametrize("bad", [[], [96], [-1]])
def test_prompts_that_are_refused(model: Model, bad: list[int]) -> None:
    engine = Engine(model, n_seqs=2)
    with pytest.raises(ValueError, match=r"no tokens|outside the vocabulary"):
        engine.add(Request(bad))
    assert not engine.has_work


def test_prompts_that_can_never_fit_are_refused(model: Model) -> None:
    engine = Engine(model, n_seqs=4, n_cache=256)
    with pytest.raises(ContextError, match="257 tokens, the context 256"):
        engine.add(Request([1] * 257))
    with pytest.raises(TypeError, match="whole numbers"):
        engine.add(Request([1.5]))  # type: ignore[list-item]
    with pytest.raises(ValueError, match="max_tokens -2"):
        engine.add(Request([1], -2))
    # One that fills everything is served, beside another that has to wait for it.
    big, small = (
        engine.add(Request([5] * 250, -1, GREEDY)),
        engine.add(Request([6] * 70, 3, GREEDY)),
    )
    found = run(engine)
    assert len(found[big]) == 7 and len(found[small]) == 3
    assert is_clean(engine)


def test_logits_that_are_not_finite(path: Path, tmp_path: Path) -> None:
    bad = {"output_norm.weight": np.full(64, np.nan, np.float32)}
    model = Model.load(write_tiny(tmp_path / "nan.gguf", weights=bad), n_threads=1)
    engine = Engine(model, n_seqs=2)
    i = engine.add(Request(PROMPT))
    (token,) = run(engine)[i]
    assert token == Token(i, None, 0, "error") and "not finite" in str(token.error)
    assert is_clean(engine)


# -- how it is scheduled ---------------------------------------------------------------------------


def test_a_cancelled_request_ends_and_others_go_on(model: Model) -> None:
    engine = Engine(model, n_seqs=2)
    ids = [engine.add(Request([i + 1] * 90, 30, GREEDY)) for i in range(4)]
    expected = [alone(model, Request([i + 1] * 90, 30, GREEDY)) for i in range(4)]
    found: dict[int, list[Token]] = {}
    for step in itertools.count():
        if step == 5:
            engine.cancel(ids[0])  # generates
            engine.cancel(ids[3])  # waits
            engine.cancel(99)  # nobody
        for token in engine.step():
            found.setdefault(token.request, []).append(token)
        if not engine.has_work:
            break
    for i in (0, 3):
        assert found[i][-1].finish == "cancel"
        assert text(found[i]) == expected[i][: len(found[i]) - 1]
    assert 0 < len(found[0]) < 30 and len(found[3]) == 1
    assert [text(found[i]) for i in (1, 2)] == expected[1:3]
    engine.cancel(ids[1])
    assert engine.step() == [] and is_clean(engine)


def test_sequences_generate_while_a_prompt_is_computed(model: Model) -> None:
    engine = Engine(model.with_options(n_ubatch=32), n_seqs=4)
    first = engine.add(Request(PROMPT, 60, GREEDY))
    engine.step()
    long, short = engine.add(Request([5] * 640, 2, GREEDY)), engine.add(Request([6] * 9, 2, GREEDY))
    order = []
    while engine.has_work:
        tokens = engine.step()
        order += [t.request for t in tokens]
        if first in engine._jobs:
            assert first in [t.request for t in tokens]  # in every step
    assert order.index(short) < order.index(long)
    n_before = order[: order.index(long)].count(first)
    assert 640 // 32 <= n_before <= 640 // 24 + 2  # the long prompt had its share of every run


def test_prompts_first(model: Model) -> None:
    engine = Engine(model.with_options(n_ubatch=32), n_seqs=4, prompts_first=True)
    ids = [engine.add(Request([i + 1] * 50, 9, GREEDY)) for i in range(3)]
    order = []
    while engine.has_work:
        order.append(sorted(t.request for t in engine.step()))
    together = order.index(ids)
    assert sorted(itertools.chain(*order[:together])) == ids  # each its first, from its prompt
    assert order[together:] == [ids] * 8


def test_what_a_prompt_shares_with_another_is_not_computed_again(model: Model) -> None:
    shared = [1 + i % 90 for i in range(300)]
    requests = [Request([*shared, *[i] * 20], 10, GREEDY) for i in range(1, 6)]
    engine = Engine(model, n_seqs=3)
    first = engine.add(requests[0])
    run(engine)
    assert engine.stats.n_prompt == 320
    ids = [first, *(engine.add(r) for r in requests[1:])]
    found = run(engine)
    assert engine.stats.n_found == 4 * 256 and engine.stats.n_prompt == 320 + 4 * 64
    for i, r in zip(ids[1:], requests[1:], strict=True):
        assert text(found[i]) == alone(model, r)
    salted = engine.add(replace(requests[0], salt=b"adapter"))
    assert text(run(engine)[salted]) == alone(model, requests[0])
    assert engine.stats.n_found == 4 * 256


def test_a_sequence_that_gave_its_pages_back_goes_on_as_if_nothing_had_happened(
    model: Model,
) -> None:
    requests = [Request([i + 1] * 60, 150, replace(HOT, seed=i, repeat_penalty=1.1))
                for i in range(5)]  # fmt: skip
    engine = Engine(model, n_seqs=5, n_cache=8 * 64)
    ids = [engine.add(r) for r in requests]
    found = run(engine)
    assert engine.stats.n_preempted > 0
    for i, r in zip(ids, requests, strict=True):
        assert text(found[i]) == alone(model, r)
    # The oldest was never made to wait: it ended first.
    assert engine.stats.n_generated == 5 * 150 and is_clean(engine)


def test_an_interrupted_step_is_done_again(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [Request([i + 1] * 70, 40, replace(HOT, seed=i)) for i in range(3)]
    engine = Engine(model.with_options(n_ubatch=32), n_seqs=3)
    ids = [engine.add(r) for r in requests]
    found: dict[int, list[Token]] = {}
    rng = np.random.default_rng(0)
    real, interrupts = engine._runner._go, 0

    def interrupted(*args):
        nonlocal interrupts
        before = rng.random() < 0.2
        if not before:
            real(*args)
        if before or rng.random() < 0.2:
            interrupts += 1
            raise KeyboardInterrupt

    monkeypatch.setattr(engine._runner, "_go", interrupted)
    while engine.has_work:
        try:
            tokens = engine.step()
        except KeyboardInterrupt:
            continue
        for token in tokens:
            found.setdefault(token.request, []).append(token)
    assert interrupts > 10
    for i, r in zip(ids, requests, strict=True):
        assert text(found[i]) == alone(model, r)


def test_a_profile_has_every_run(model: Model) -> None:
    profile = Profile()
    engine = Engine(model, n_seqs=2, profile=profile)
    for _ in range(2):
        engine.add(Request(PROMPT, 5, GREEDY))
    run(engine)
    assert len(profile.steps) == engine.stats.n_steps == 5
    assert [s.n_tokens for s in profile.steps] == [12, 2, 2, 2, 2]


@pytest.mark.parametrize(("live", "most"), [(True, 4), (False, 32)])
def test_no_prompt_length_compiles_anew(
    model: Model, monkeypatch: pytest.MonkeyPatch, live: bool, most: int
) -> None:
    compiled: list[object] = []

    def counted(*args):
        compiled.append(args)
        return compile_graph(*args)

    monkeypatch.setattr("gguflow.engine.planning.compile_graph", counted)
    if not live:
        pad(monkeypatch)
    engine = Engine(model.with_options(n_ubatch=64), n_seqs=4)
    rng = np.random.default_rng(0)

    def requests(n: int) -> None:
        for length in rng.integers(1, 200, n).tolist():
            ids = rng.integers(1, 90, length).tolist()
            engine.add(Request(ids, int(rng.integers(1, 9)), GREEDY))
        run(engine)

    requests(60)
    assert len(compiled) <= most
    before = len(compiled)
    requests(30)
    assert len(compiled) - before <= (0 if live else 6)


def test_a_first_token_compiles_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    session = model.with_options(n_ubatch=256).new_session()
    next(session.generate([1] * 100, 1, GREEDY))
    monkeypatch.setattr("gguflow.engine.planning.compile_graph", None)
    for n in (2, 3, 17, 99, 101, 255, 256):
        next(session.generate([n % 90] * n, 1, GREEDY))


# -- everything at once ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "n_requests"),
    some_of(
        [("live rows", 60), ("gathered, with loops", 60)],
        ("live rows", "padded", "with loops", "gathered, with loops"),
        (60, 200),
    ),
)
def test_mixed_lengths_arriving_at_random(
    model: Model, monkeypatch: pytest.MonkeyPatch, n_requests: int, kind: str
) -> None:
    if kind != "live rows":
        pad(monkeypatch)
    if "with loops" in kind:
        install(monkeypatch)
    rng = np.random.default_rng(n_requests)
    beginnings = [rng.integers(1, 90, 700).tolist() for _ in range(3)]
    requests = []
    for i in range(n_requests):
        n = int(np.exp(rng.uniform(0, np.log(2000))))
        ids = rng.integers(1, 90, n).tolist()
        if rng.random() < 0.4:  # begins as others do
            b = beginnings[rng.integers(3)][: rng.integers(1, 700)]
            ids = [*b, *ids][: max(n, len(b) + 1)]
        settings = (GREEDY, replace(HOT, seed=i), SamplerSettings(seed=i, repeat_penalty=1.2))
        stop = {5, 6} if rng.random() < 0.3 else set()
        requests.append(Request(ids, int(rng.integers(1, 250)), settings[i % 3], stop))
    # Pages for one long request and a little, so that sequences have to give theirs back.
    engine = Engine(model.with_options(n_ubatch=128), n_seqs=8, n_cache=40 * 64)
    if kind == "gathered, with loops":
        engine._scheduler._gathers = True
        monkeypatch.setattr(scheduler, "GATHER_SHARE", 1)
        monkeypatch.setattr(scheduler, "GATHER_EACH", 0.003)
    pool = engine._kv.pools["full"]
    arenas = {space: arena.nbytes for space, arena in engine._runner._arenas.items()}
    arrivals = np.sort(rng.integers(0, 8 * n_requests, n_requests))
    cancels = {i: int(arrivals[i] + rng.integers(1, 30)) for i in range(0, n_requests, 10)}
    found: dict[int, list[Token]] = {}
    ids: list[int] = []
    for step in itertools.count():
        while len(ids) < n_requests and arrivals[len(ids)] <= step:
            ids.append(engine.add(requests[len(ids)]))
        for i, when in cancels.items():
            if when == step and i < len(ids):
                engine.cancel(ids[i])
        for token in engine.step():
            found.setdefault(token.request, []).append(token)
        assert pool.n_used + pool.n_idle + pool.n_free == pool.n_pages
        if len(ids) == n_requests and not engine.has_work:
            break
    # What was reserved before the first request was enough.
    assert arenas == {space: arena.nbytes for space, arena in engine._runner._arenas.items()}
    stats = engine.stats
    assert stats.n_preempted > 0 and stats.n_found > 0
    if "with loops" in kind:
        assert any(loop.launched for loop in Loop.made)
    monkeypatch.undo()
    n_cancelled = 0
    session = model.new_session()
    for i, r in zip(ids, requests, strict=True):
        expected = list(session.generate(r.ids, r.max_tokens, r.settings, r.stop))
        if found[i][-1].finish == "cancel":
            n_cancelled += 1
            assert text(found[i]) == expected[: len(found[i]) - 1]
        else:
            assert text(found[i]) == expected, f"request {i} of {len(r.ids)} tokens"
    assert n_cancelled > 0
    assert is_clean(engine) and not engine._scheduler.running and not engine._scheduler.waiting


@pytest.mark.parametrize("type_name", ["f16", "f32"])
def test_forks_have_rows_of_their_own(model: Model, type_name: str) -> None:
    """A fork shares pages until one of the two writes, and then has a copy of them."""
    kind = dtype_by_name(type_name)
    runner = Runner(model.with_options(n_seqs=2, k_type=kind, v_type=kind))
    kv = runner.kv
    first = kv.create()

    def go_on(seq: int, ids: list[int]) -> np.ndarray:
        kv.grow(seq, len(ids))
        logits = runner.run(rows_of(kv, [Piece(seq, ids, 1)]))[0][0].copy()
        kv.advance(seq, ids)
        return logits

    ids = list(range(5, 85)) * 2
    go_on(first, ids)
    second = kv.fork(first)
    found = [go_on(first, [7] * 3), go_on(second, [9] * 3), go_on(first, [7]), go_on(second, [9])]
    own = model.with_options(k_type=kind, v_type=kind)
    for logits, seen in zip(found, ([7] * 3, [9] * 3, [7] * 4, [9] * 4), strict=True):
        np.testing.assert_array_equal(logits, own.new_session().logits([*ids, *seen])[-1])
