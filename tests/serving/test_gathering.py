"""Short prompts that come one by one are computed together, and nobody waits long for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_in_loop import Loop, install
from tiny_model import write_tiny

from gguflow.engine.model import Model
from gguflow.engine.sampling import GREEDY
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.kv import Group, KvCache
from gguflow.engine.serving.request import Job, Request
from gguflow.engine.serving.scheduler import GATHER_EACH, Batch, Scheduler

N_CHUNK, N_SEQS = 256, 64


class Watch:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Place:
    """A scheduler of sequences that generate, and of more that come."""

    def __init__(self, n_generate: int, gathers: bool = True) -> None:
        self.watch, self.n_made = Watch(), 0
        self.kv = KvCache({"full": Group(N_SEQS * 32)}, N_SEQS, 32, lambda *_: None)
        self.scheduler = Scheduler(self.kv, N_CHUNK, gathers=gathers, now=self.watch)
        for _ in range(n_generate):
            self.come(4)
        while any(not job.generates for job in self.scheduler.running) or not self.n_running:
            self.step()
        self.step()  # the last run with prompts is over

    @property
    def n_running(self) -> int:
        return len(self.scheduler.running)

    def come(self, n: int) -> Job:
        ids = [self.n_made % 90] * n
        job = Job(self.n_made, Request(ids, 100, GREEDY), ids, 0, 2048)
        self.n_made += 1
        self.scheduler.add(job)
        return job

    def step(self) -> Batch:
        """The next run, as an engine would make it."""
        batch = self.scheduler.next()
        for job, n in [*((job, 1) for job in batch.singles), *batch.chunks]:
            self.kv.advance(job.place, job.tokens[job.n_rows : job.n_rows + n])
            job.n_rows += n
            if job.n_rows == len(job.tokens):
                job.tokens.append(1)
        return batch


def test_a_prompt_that_comes_alone_begins_at_once() -> None:
    place = Place(32)
    place.watch.now += 1.0
    job = place.come(20)
    assert place.step().chunks == [(job, 20)]


def test_the_next_one_waits_a_moment() -> None:
    place = Place(32)
    place.watch.now += 1.0
    place.come(20)
    place.step()
    job = place.come(20)
    assert place.scheduler.may_admit and not place.scheduler.wants_prompts
    place.watch.now += 32 * GATHER_EACH * 0.9
    batch = place.step()
    assert not batch.chunks and len(batch.singles) == 33
    place.watch.now += 33 * GATHER_EACH * 0.2
    assert place.scheduler.wants_prompts
    assert place.step().chunks == [(job, 20)]


@pytest.mark.parametrize(
    ("n_generate", "lengths"),
    [(32, [N_CHUNK]), (48, [N_CHUNK // 2] * 2), (4, [20]), (32, [20] * 3)],
    ids=["a long one", "enough for a run", "few generate", "many wait"],
)
def test_what_does_not_wait(n_generate: int, lengths: list[int]) -> None:
    place = Place(n_generate)
    jobs = [place.come(n) for n in lengths]
    assert [job for job, _ in place.step().chunks] == jobs


def test_a_long_prompt_goes_on_and_its_end_waits_with_others() -> None:
    place = Place(32)
    long = place.come(2 * N_CHUNK + 10)
    for _ in range(2):
        assert place.step().chunks == [(long, N_CHUNK)]
    batch = place.step()
    assert not batch.chunks and len(batch.singles) == 32 and batch.n_gathered == 1
    other = place.come(30)
    place.watch.now += 32 * GATHER_EACH * 1.1
    assert place.step().chunks == [(long, 10), (other, 30)]


def test_hosts_gather_nothing() -> None:
    place = Place(32, gathers=False)
    for _ in range(2):
        job = place.come(20)
        assert place.step().chunks == [(job, 20)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("m") / "m.gguf"
    return Model.load(write_tiny(path, gain=2.0, n_ctx_train=2304), n_threads=1)


def test_a_device_runs_ahead_while_prompts_are_gathered(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [Request([7 + i, 8, 9], 40 + i, GREEDY) for i in range(33)]
    expected = [list(model.new_session().generate(r.ids, r.max_tokens, GREEDY)) for r in requests]
    install(monkeypatch)
    engine, watch = Engine(model, n_seqs=40), Watch()
    engine._scheduler._gathers, engine._scheduler._now = True, watch
    found: dict[int, list[int]] = {}

    def step() -> None:
        for token in engine.step():
            assert token.id is not None
            found.setdefault(token.request, []).append(token.id)

    ids = [engine.add(r) for r in requests[:32]]
    for _ in range(6):
        step()
    assert engine.runs_ahead
    ids.append(engine.add(requests[32]))
    for _ in range(5):
        step()
        assert engine.runs_ahead and ids[32] not in found
    launched = sum(loop.launched for loop in Loop.made)
    watch.now += 1.0
    while ids[32] not in found:
        step()
    assert sum(loop.launched for loop in Loop.made) == launched  # none more before it
    while engine.has_work:
        step()
    assert [found[id] for id in ids] == expected


def test_a_device_goes_on_when_a_sequence_ends(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [Request([7 + i, 8, 9], 12 + 3 * i, GREEDY) for i in range(8)]
    expected = [list(model.new_session().generate(r.ids, r.max_tokens, GREEDY)) for r in requests]
    install(monkeypatch)
    starts: list[int] = []
    start = Loop.start

    def counted(loop: Loop) -> None:
        starts.append(int((loop.bound.inputs["pos"] >= 0).sum()))
        start(loop)

    monkeypatch.setattr(Loop, "start", counted)
    engine, found = Engine(model, n_seqs=8), dict[int, list[int | None]]()
    ids = [engine.add(r) for r in requests]
    while engine.has_work:
        for token in engine.step():
            found.setdefault(token.request, []).append(token.id)
    assert [found[id] for id in ids] == expected
    assert starts[0] == 8 and len(starts) <= 4
    assert engine.stats.n_available == engine.stats.n_pages
