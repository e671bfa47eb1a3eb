"""Generation that runs ahead of the host, on a stand-in for a device."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from stand_in_loop import Loop, install
from tiny_model import write_tiny

from gguflow.engine.ahead import DEPTH, LEAST, Ahead
from gguflow.engine.model import Model
from gguflow.engine.profile import Profile
from gguflow.engine.sampling import SamplerSettings
from gguflow.engine.session import Session

GREEDY = SamplerSettings(temperature=0.0)
HOT = SamplerSettings(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.2, seed=4)
PROMPT = [1, 40, 50, 60, 70, 80]


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Model:
    install(monkeypatch)
    return Model.load(write_tiny(tmp_path_factory.mktemp("m") / "m.gguf", gain=2.0), n_threads=1)


def stepwise(model: Model, prompt: list[int], n: int, settings: SamplerSettings) -> list[int]:
    """The same generation with every token read before the next step: profiles want that."""
    before = len(Loop.made)
    found = list(model.new_session(Profile()).generate(prompt, n, settings))
    assert len(Loop.made) == before
    return found


@pytest.mark.parametrize("settings", [GREEDY, HOT, SamplerSettings(seed=9)])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, DEPTH + 2, 40])
def test_the_tokens_are_those_of_single_steps(
    model: Model, settings: SamplerSettings, n: int
) -> None:
    session = model.new_session()
    found = list(session.generate(PROMPT, n, settings))
    assert found == stepwise(model, PROMPT, n, settings)
    assert session.tokens == [*PROMPT, *found[:-1]]
    assert session.timings.n_generated == n and session.timings.n_runs == n - 1
    # No step is run for a token that nobody may ask for.
    assert sum(loop.launched for loop in Loop.made) == (n - 1 if n > 3 else 0)


def test_it_ends_with_the_context(model: Model) -> None:
    session = model.new_session()
    found = list(session.generate(PROMPT, -1, HOT))
    assert len(PROMPT) + len(found) == model.options.n_ctx + 1
    assert found == stepwise(model, PROMPT, -1, HOT)
    assert session.is_full
    assert Loop.made[0].launched == model.options.n_ctx - len(PROMPT)


@pytest.mark.parametrize("n", range(1, 14))
def test_stop_tokens(model: Model, n: int) -> None:
    plain = stepwise(model, PROMPT, 30, HOT)
    stop = {plain[n]}
    expected = plain[: plain.index(plain[n])]
    session = model.new_session()
    assert list(session.generate(PROMPT, 30, HOT, stop)) == expected
    # The stop token was made and is in no cache row that counts; what follows computes it again.
    assert session.tokens == [*PROMPT, *expected]
    longer = [*PROMPT, *expected, 33, 44]
    again = list(session.generate(longer, 20, GREEDY))
    assert session.timings.n_prompt == len(longer) - len(PROMPT) - len(expected)
    assert again == stepwise(model, longer, 20, GREEDY)


@pytest.mark.parametrize("taken", [1, 2, 3, 7])
def test_a_generator_left_early(model: Model, taken: int) -> None:
    session = model.new_session()
    tokens = session.generate(PROMPT, 50, HOT)
    found = [next(tokens) for _ in range(taken)]
    assert session.tokens == [*PROMPT, *found[:-1]]
    tokens.close()
    longer = [*PROMPT, *found, 17]
    assert list(session.generate(longer, 9, HOT)) == stepwise(model, longer, 9, HOT)


def test_generations_that_take_turns(model: Model) -> None:
    session = model.new_session()
    prompts = PROMPT, [*PROMPT[:3], 7, 8], [2, 3]
    settings = HOT, GREEDY, replace(HOT, seed=5)
    streams = [session.generate(p, 20, s) for p, s in zip(prompts, settings, strict=True)]
    found: list[list[int]] = [[], [], []]
    for turn in range(20):
        for i, stream in enumerate(streams):
            for _ in range(1 if turn % 5 else 4):
                found[i] += [t for t in [next(stream, None)] if t is not None]
    for i, (p, s) in enumerate(zip(prompts, settings, strict=True)):
        assert found[i] == stepwise(model, p, 20, s)


def test_generations_on_several_threads(model: Model) -> None:
    session = model.new_session()
    found: dict[int, list[int]] = {}

    def run(seed: int) -> None:
        found[seed] = list(session.generate([seed, *PROMPT], 12, replace(HOT, seed=seed)))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in (2, 3, 4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for seed, tokens in found.items():
        assert tokens == stepwise(model, [seed, *PROMPT], 12, replace(HOT, seed=seed))


def test_a_rewind_or_a_step_in_between(model: Model) -> None:
    session = model.new_session()
    tokens = session.generate(PROMPT, 20, HOT)
    found = [next(tokens) for _ in range(4)]
    session.rewind(2)
    found += [next(tokens) for _ in range(4)]
    session.step((5,), "last")
    session.logits([9, 9, 9])
    assert [*found, *tokens] == stepwise(model, PROMPT, 20, HOT)


def test_an_interrupt_while_waiting(model: Model) -> None:
    session = model.new_session()
    tokens = session.generate(PROMPT, 20, HOT)
    found = [next(tokens) for _ in range(4)]
    Loop.made[0].fails = True
    with pytest.raises(KeyboardInterrupt):
        next(tokens)
    assert session.tokens == [*PROMPT, *found[:-1]]
    longer = [*PROMPT, *found]
    assert list(session.generate(longer, 6, GREEDY)) == stepwise(model, longer, 6, GREEDY)


def test_a_profile_given_in_between_has_every_later_step(model: Model) -> None:
    session = model.new_session()
    tokens = session.generate(PROMPT, 20, HOT)
    found = [next(tokens) for _ in range(6)]
    session.profile = Profile()
    found += list(tokens)
    assert len(session.profile.steps) == 14
    assert found == stepwise(model, PROMPT, 20, HOT)


def test_logits_after_a_generation(model: Model) -> None:
    session: Session = model.new_session()
    next(iter(session.generate(PROMPT, 20, HOT)))
    np.testing.assert_array_equal(session.logits(PROMPT), model.new_session().logits(PROMPT))


# -- how many steps are on their way ---------------------------------------------------------------


class Clock:
    """A loop of steps of one length, and a host that takes no time."""

    def __init__(self, seconds: float, n: int = 3) -> None:
        self.seconds, self.n = seconds, n
        self.now = 0.0
        self.launched = self.waited = self.starts = self.most = 0

    def start(self) -> None:
        self.starts += 1

    def launch(self) -> None:
        self.launched += 1
        self.most = max(self.most, self.launched - self.waited)

    def wait(self, step: int) -> np.ndarray:
        self.waited += 1
        assert step == self.waited <= self.launched
        self.now += self.seconds
        return np.full(self.n, step, np.int32)


@pytest.mark.parametrize("ms, depth", [(0.1, DEPTH), (1.0, 6), (2.9, 3), (40.0, LEAST)])
def test_long_steps_need_fewer_on_their_way(
    monkeypatch: pytest.MonkeyPatch, ms: float, depth: int
) -> None:
    loop = Clock(ms * 1e-3)
    monkeypatch.setattr("time.perf_counter", lambda: loop.now)
    ahead = Ahead(loop, 50)
    for step in range(1, 51):
        np.testing.assert_array_equal(ahead.next(), [step] * 3)
        assert ahead.running == loop.launched - loop.waited
    assert ahead.is_over
    assert (loop.launched, loop.starts, loop.most) == (50, 1, depth)


class Busy(Clock):
    """A device whose steps take 10 ms, and a host that is busy for 55 ms after the sixth."""

    def wait(self, step: int) -> np.ndarray:
        tokens = super().wait(step)
        self.now = max(self.now, step * 10e-3)
        return tokens


def test_a_host_that_looks_late_does_not_think_steps_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done meanwhile comes at once, but not all of it sooner than the device makes it."""
    loop = Busy(0.0)
    monkeypatch.setattr("time.perf_counter", lambda: loop.now)
    ahead = Ahead(loop, 12)
    waited = []
    for step in range(1, 13):
        began = loop.now
        ahead.next()
        waited.append(loop.now - began)
        if step == 6:
            loop.now += 55e-3
    assert min(waited) == 0.0
    assert ahead.is_over and ahead.taken == 12
    assert ahead.seconds / ahead.taken == pytest.approx(10e-3)
