"""--context-shift and --keep: a text that goes on where the context ends."""

from __future__ import annotations

import pytest

from gguflow.cli.shift import Shift
from gguflow.engine.model import Model
from gguflow.engine.sampling import GREEDY, SamplerSettings
from gguflow.engine.serving.request import Request

PROMPT = [1, 40, 41, 42, 43]


@pytest.mark.parametrize("n_keep", [0, 3])
def test_the_later_half_is_read_again(tiny_model: str, n_keep: int) -> None:
    model = Model.load(tiny_model, n_ctx=20, n_threads=1)
    session, shift = model.new_session(), Shift(n_keep)
    made = [c.id for c in shift.choices(session, Request(PROMPT, 30, GREEDY))]
    assert len(made) == 30 and session.timings.n_generated == 30
    first = list(model.new_session().generate(PROMPT, -1, GREEDY))
    known = [*PROMPT, *first]
    n_out = (len(known) - n_keep) // 2
    again = [*known[:n_keep], *known[n_keep + n_out :]]
    second = list(model.new_session().generate(again, -1, GREEDY))
    n = len(first) + len(second)
    assert made[:n] == [*first, *second] and 16 < n < 30
    assert shift.n_left_out >= n_out


def test_where_it_ends(tiny_model: str) -> None:
    model = Model.load(tiny_model, n_ctx=20, n_threads=1)
    everything = Shift(20)  # nothing may be left out
    assert len(list(everything.choices(model.new_session(), Request(PROMPT, -1, GREEDY)))) == 16
    stop = next(iter(Shift(0).choices(model.new_session(), Request(PROMPT, -1, GREEDY)))).id
    request = Request(PROMPT, -1, GREEDY, frozenset([stop]))
    assert list(Shift(0).choices(model.new_session(), request)) == []


def test_numbers_are_not_drawn_twice(tiny_model: str) -> None:
    model = Model.load(tiny_model, n_ctx=8, n_threads=1)
    hot = SamplerSettings(temperature=100.0, top_k=0, top_p=1.0, min_p=0.0, seed=7)
    request = Request([1], 40, hot)
    made = [c.id for c in Shift(0).choices(model.new_session(), request)]
    assert made == [c.id for c in Shift(0).choices(model.new_session(), request)]
    assert made[8:12] != made[12:16] != made[16:20]


def test_the_command_says_so(run, tiny_model: str) -> None:
    flags = ("generate", "-m", tiny_model, "-p", "Hello", "--temp", "0", "-c", "24", "--no-perf",
             "--ignore-eos", "-t", "1")  # fmt: skip
    done = run(*flags, "-n", "60", "--context-shift", "--keep", "3")
    assert done.returncode == 0 and len(done.stdout) > 60
    assert "tokens were left out" in done.stderr and "stopped" not in done.stderr
    for more in (("-n", "60"), ("-n", "-2", "--context-shift")):
        done = run(*flags, *more)
        assert "stopped because the context of 24 tokens is full" in done.stderr
