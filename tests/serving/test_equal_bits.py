"""docs/equal-bits.md: the same request, the same bytes, whatever happens around it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import equal_bits
import numpy as np
import pytest
from equal_bits import HOT, WEIGHTS, Bits
from test_engine import pad
from waited_for import some_of

from gguflow.engine.backends.cpu.native import runnable_isas
from gguflow.engine.graph import dtype_by_name
from gguflow.engine.plan_key import PlanKey
from gguflow.engine.sampling import GREEDY
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.engine.serving.runner import Runner
from gguflow.engine.serving.speculation import Speculation

AT_ONCE = (1, 3, 8, 32)
MANY_AT_ONCE = (*AT_ONCE, 128)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("equal_bits")


def kv(name: str) -> dict:
    return {"k_type": dtype_by_name(name), "v_type": dtype_by_name(name)}


# -- the CPU ---------------------------------------------------------------------------------------


def hold(
    folder: Path,
    weights: str,
    type_kv: str,
    n_requests: int,
    isa: str | None = None,
    at_once: tuple[int, ...] = AT_ONCE,
) -> None:
    todo = equal_bits.requests(n_requests)
    expected: list[Bits] | None = None
    n_complete = 0
    for n_threads in (1, 2):
        options = {"n_threads": n_threads, "isa": isa, **kv(type_kv)}
        model = equal_bits.load(folder, weights, **options)
        found = equal_bits.alone(model, todo)
        expected = expected or found
        assert found == expected
        draft = model.load_draft(equal_bits.source_of(folder, "Q4_1"))  # often right
        for i, n_seqs in enumerate(at_once):
            if n_seqs == 8:
                by_lookup = Speculation(lookup=True, adaptive=False)
                by_draft = Speculation(draft=draft, most=4, adaptive=False)
                model.speculate(by_lookup if n_threads == 1 else by_draft)
            stress = equal_bits.together(model, todo, n_seqs, 10 * n_threads + i)
            n_complete += equal_bits.check(expected, stress)
            model.speculate(None)
    assert len({b.digest for b in expected or ()} - {None}) == n_requests
    assert n_complete > 0.6 * 2 * 2 * len(at_once) * n_requests


@pytest.mark.parametrize(
    ("weights", "type_kv"),
    some_of([("Q4_0", "f16"), ("Q8_0", "f16"), ("F16", "q8_0")], WEIGHTS, ("f16", "q8_0")),
)
def test_a_requests_bits_are_its_own(folder: Path, weights: str, type_kv: str) -> None:
    """Ten requests are no more at once than eight and two, or by threes, but for the first type."""
    hold(folder, weights, type_kv, 10, at_once=AT_ONCE if weights == WEIGHTS[0] else (3, 8))


@pytest.mark.slow
@pytest.mark.parametrize("weights", WEIGHTS)
def test_500_requests_up_to_128_at_a_time(folder: Path, weights: str) -> None:
    hold(folder, weights, "f16", 500, at_once=MANY_AT_ONCE)


@pytest.mark.slow
@pytest.mark.parametrize("type_kv", ["f16", "q8_0"])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(
    "isa", ["baseline", "avx2", "avx512", "avx512bf16", "amx", "dotprod", "i8mm"]
)
def test_with_each_instruction_set(folder: Path, isa: str, weights: str, type_kv: str) -> None:
    if isa not in runnable_isas():
        pytest.skip(f"this machine has no {isa}")
    hold(folder, weights, type_kv, 60, isa)


# -- devices whose bits differ between generated tokens and prompts --------------------------------


class Classes:
    """Holds every run's rows to their class: a prompt's tokens in chunks, others as single rows."""

    def __init__(self, runner: Runner) -> None:
        self.n = {True: 0, False: 0}
        self.owners: dict[int, int] = {}  # length of a sequence's prompt, by its number
        run, run_one = runner.run, runner.run_one

        def watched(rows, sampling=None, every=False):
            for i, (seq, pos) in enumerate(zip(rows.seqs[rows.seq], rows.pos, strict=True)):
                self._see(int(seq), int(pos), i < rows.n_single)
            return run(rows, sampling, every)

        def watched_one(seq, token, sampling=None, output=True):
            self._see(seq, runner.kv.length(seq), True)
            return run_one(seq, token, sampling, output)

        runner.run, runner.run_one = watched, watched_one  # type: ignore[method-assign]

    def n_prompt(self, seq: int) -> int:
        return self.owners[seq]

    def _see(self, seq: int, pos: int, single: bool) -> None:
        assert single == (pos >= self.n_prompt(seq)), f"token {pos} of {self.n_prompt(seq)}"
        self.n[single] += 1


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans as a device has them, and rows that may not stand for each other."""
    pad(monkeypatch)
    monkeypatch.setattr("gguflow.engine.serving.runner.HOST_SPACE", "no space")


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("guesses", [False, True])
def test_an_engines_tokens_keep_their_class(
    folder: Path, apart: None, guesses: bool, equal: bool
) -> None:
    model = equal_bits.load(folder, "Q8_0", n_threads=1, equal_bits=equal)
    todo = equal_bits.requests(12, seed=2)
    expected = equal_bits.alone(model, todo)
    model.speculate(Speculation(lookup=True, adaptive=False) if guesses else None)
    engine = Engine(model.with_options(n_ubatch=48), n_seqs=4)
    classes = Classes(engine._runner)
    jobs = engine._scheduler.running
    classes.n_prompt = lambda seq: next(j.n_prompt for j in jobs if j.seq == seq)  # type: ignore[method-assign]
    rng = np.random.default_rng(0)
    found: dict[int, list[int]] = {engine.add(r): [] for r in todo}
    n_preempted = 0
    while engine.has_work:
        for token in engine.step():
            found[token.request].append(token.id or 0)
        if jobs and rng.random() < 0.2:
            engine._scheduler.preempt(jobs[int(rng.integers(len(jobs)))])
            n_preempted += 1
    assert n_preempted > 5 and all(classes.n.values())
    assert [tuple(t) for t in found.values()] == [b.tokens for b in expected]


def test_rows_that_all_have_an_output_run_apart(folder: Path, apart: None) -> None:
    """The last ones of other prompts' rows are picked, and then they are single ones."""
    model = equal_bits.load(folder, "Q8_0", n_threads=1, equal_bits=True)
    todo = equal_bits.requests(12, seed=6)
    todo = [replace(r, prompt_logprobs=i % 3 == 0) for i, r in enumerate(todo)]
    expected = equal_bits.alone(model, todo)
    engine = Engine(model.with_options(n_ubatch=48), n_seqs=4)
    run, n_runs = engine._runner.run, {True: 0, False: 0}

    def watched(rows, sampling=None, every=False):
        for seq in set(rows.seqs[rows.seq[rows.n_single :]].tolist()):
            job = next(j for j in engine._scheduler.running if j.seq == seq)
            assert job.request.prompt_logprobs == every
            n_runs[every] += 1
        return run(rows, sampling, every)

    engine._runner.run = watched  # type: ignore[method-assign]
    found: dict[int, list[int]] = {engine.add(r): [] for r in todo}
    while engine.has_work:
        for token in engine.step():
            found[token.request].append(token.id or 0)
    assert all(n > 3 for n in n_runs.values())
    assert [tuple(t) for t in found.values()] == [b.tokens for b in expected]


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("guesses", [False, True])
def test_a_sessions_tokens_keep_their_class(
    folder: Path, apart: None, guesses: bool, equal: bool
) -> None:
    """A prompt of one token too, and generations that take turns or go on from one another."""
    model = equal_bits.load(folder, "Q8_0", n_threads=1, n_ubatch=32, equal_bits=equal)
    todo = [*equal_bits.requests(5, seed=3), Request([7], 10, GREEDY), Request([8] * 33, 10, HOT)]
    expected = [list(b.tokens) for b in equal_bits.alone(model, todo)]
    model.speculate(Speculation(lookup=True, adaptive=False) if guesses else None)
    session = model.new_session()
    classes = Classes(session._runner)
    turns = [session.generate(r.ids, r.max_tokens, r.settings) for r in todo]
    found: list[list[int]] = [[] for _ in turns]
    rng = np.random.default_rng(1)
    left = [*range(len(turns))]
    while left:
        i = int(rng.choice(left))
        classes.n_prompt = lambda seq, i=i: len(todo[i].ids)  # type: ignore[method-assign,misc]
        for _ in range(int(rng.integers(1, 4))):
            token = next(turns[i], None)
            if token is None:
                left.remove(i)
                break
            found[i].append(token)
    assert found == expected and all(classes.n.values())
    # What was generated is a prompt now, and computed as one.
    again = [*todo[0].ids, *expected[0], 5, 6]
    classes.n_prompt = lambda seq: len(again)  # type: ignore[method-assign]
    assert list(session.generate(again, 8, GREEDY)) == list(
        model.new_session().generate(again, 8, GREEDY)
    )


def test_rows_to_output_are_picked_behind_attention_where_that_is_asked_for(
    folder: Path, apart: None
) -> None:
    """In a run with pieces of prompts the last layer would have other ops than without."""
    todo = equal_bits.requests(8, seed=5)
    plain, equal = (
        equal_bits.load(folder, "F16", n_threads=1, equal_bits=e) for e in (False, True)
    )
    shapes = [
        [n.shape[0] for n in m.plan(PlanKey(4, 16, 4, 4, True)).graph.nodes if n.op == "attention"]
        for m in (plain, equal)
    ]
    assert shapes[0] == [20] * (len(shapes[0]) - 1) + [4] and shapes[1] == [20] * len(shapes[0])
    expected = equal_bits.alone(plain, todo)
    assert equal_bits.alone(equal, todo) == expected
    assert equal_bits.check(expected, equal_bits.together(equal, todo, 4, 1)) > 8


# -- random draws ----------------------------------------------------------------------------------


def test_a_draw_belongs_to_its_position(folder: Path) -> None:
    """(seed, step) of `sample` are the request's and the token's number, after a restart too."""
    model = equal_bits.load(folder, "F16", n_threads=1)
    engine = Engine(model, n_seqs=3)
    seen: dict[tuple[int, int], set[int]] = {}
    run = engine._runner.run

    def watched(rows, sampling=None, every=False):
        if sampling is not None:
            where = rows.seqs[rows.seq[rows.out]], rows.pos[rows.out], sampling.rng
            for seq, pos, (seed, step) in zip(*where, strict=True):
                job = next(j for j in engine._scheduler.running if j.seq == seq)
                assert (int(seed), int(step)) == (job.seed, int(pos) + 1 - job.n_prompt)
                seen.setdefault((job.id, int(pos)), set()).add(int(step))
        return run(rows, sampling, every)

    engine._runner.run = watched  # type: ignore[method-assign]
    for r in equal_bits.requests(9, seed=4):
        engine.add(r)
    step = 0
    while engine.has_work:
        engine.step()
        step += 1
        if step % 7 == 0 and engine._scheduler.running:
            engine._scheduler.preempt(engine._scheduler.running[-1])
    assert len(seen) > 50 and {len(steps) for steps in seen.values()} == {1}
