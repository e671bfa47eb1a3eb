"""How long guesses are: what pays by measured acceptance and times, and nothing where it loses."""

from __future__ import annotations

import numpy as np
import pytest

from gguflow.engine.serving.speculation_pace import (
    CHECK,
    FOLLOWING,
    Acceptance,
    Clock,
    Pace,
    Times,
)


def simulate(
    share: float, row: float, step: float, n_tokens: int, n_lines: int = 1, noise: float = 0.0,
    seed: int = 0,
) -> tuple[float, list[int]]:  # fmt: skip
    """Tokens a second of guessing over those of plain runs, and how long guesses were, round by
    round. share: of guesses that come true. A plain run takes 1; each row more `row`, a guess for
    all lines `step`. noise: of all times, now and then much more, as other programs make it."""
    rng = np.random.default_rng(seed)
    times = Times(lambda n: n, True)
    pace = Pace(16, 128, times)
    clock = lambda t: t * (1 + noise * float(rng.random() + 5 * (rng.random() < 0.02)))  # noqa: E731
    made = np.zeros(n_lines)
    spent, lengths = 0.0, []
    keys = [*range(n_lines)]
    while made.min() < n_tokens:
        found = [0] * n_lines
        if times.plain(n_lines) is not None and not pace.waits:
            found = pace.lengths(keys, [n_tokens] * n_lines, step)
        if not any(found):
            spent += 1
            made += 1
            times.ran_plain(n_lines, clock(1.0))
            pace.waits = max(0, pace.waits - 1)
            continue
        lengths.append(max(found))
        took = 1 + row * sum(found)
        spent += took + step * max(found)
        times.ran(n_lines + sum(found), clock(took))
        for key, n in zip(keys, found, strict=True):
            right = rng.random(n) < share
            n_true = n if right.all() else int(np.argmin(right))
            made[key] += 1 + n_true
            if n:
                pace.outcome(key, n, n_true)
    return float(made.sum() / n_lines / spent), lengths


@pytest.mark.parametrize("n_tokens", [128, 1000])
@pytest.mark.parametrize("step", [0.0, 0.15])
def test_guesses_that_never_come_true_cost_little(n_tokens: int, step: float) -> None:
    speed, lengths = simulate(0.0, 0.1, step, n_tokens)
    assert speed > 0.97 and lengths  # it was tried


def test_runs_that_take_as_long_as_their_rows_are_left_alone() -> None:
    """Where checking costs as much as generating, guesses can win nothing."""
    assert simulate(0.8, 1.0, 0.0, 1000)[0] > 0.97


@pytest.mark.parametrize(
    ("share", "row", "step", "least", "longest"),
    [
        (1.0, 0.02, 0.0, 9.0, 16),
        (0.7, 0.05, 0.15, 1.45, 6),
        (0.7, 0.1, 0.0, 1.9, 8),
        (0.5, 0.1, 0.0, 1.45, 5),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_it_gains_nearly_what_the_best_length_would(
    share: float, row: float, step: float, least: float, longest: int, noise: float
) -> None:
    def of(n: int) -> float:  # what a fixed length gains
        return (n + 1 if share == 1 else (1 - share ** (n + 1)) / (1 - share)) / (
            1 + n * (row + step)
        )

    best = max(of(n) for n in range(17))
    assert best > least  # the case is what it is said to be
    speed, lengths = simulate(share, row, step, 2000, noise=noise)
    assert speed > (0.9 if noise else 0.94) * best
    assert np.median(lengths[20:]) <= longest


def test_it_is_tried_again_and_then_goes_on() -> None:
    """A text whose middle repeats what came before."""
    times = Times(lambda n: n, True)
    pace = Pace(8, 128, times)
    right, n_plain, n_rounds = False, 0, 0
    for i in range(600):
        right = right or i == 300
        found = [0] if times.plain(1) is None or pace.waits else pace.lengths([1], [100], 0.0)
        if found[0]:
            times.ran(1 + found[0], 1 + 0.1 * found[0])
            pace.outcome(1, found[0], found[0] if right else 0)
            n_rounds += right
        else:
            times.ran_plain(1, 1.0)
            pace.waits = max(0, pace.waits - 1)
            n_plain += not right
    assert n_plain > 240 and n_rounds > 30


def test_many_lines_share_the_rows_of_a_run() -> None:
    times = Times(lambda n: n, True)
    for _ in range(3):
        times.ran_plain(100, 1.0)
    found = Pace(16, 128, times).lengths([*range(100)], [16] * 100, 0.0)
    assert 0 < sum(found) <= 28
    assert Pace(16, 128, times).lengths([*range(128)], [16] * 128, 0.0) == [0] * 128
    room = [0, 3, 1]
    for _ in range(3):
        times.ran_plain(3, 1.0)
    found = Pace(16, 128, times).lengths([7, 8, 9], room, 0.0)
    assert all(n <= m for n, m in zip(found, room, strict=True)) and any(found)


def test_those_that_guess_well_get_longer_guesses() -> None:
    times = Times(lambda n: n, True)
    for _ in range(3):
        times.ran_plain(2, 1.0)
    pace = Pace(16, 128, times)
    for _ in range(20):
        pace.outcome(1, 4, 4)
        pace.outcome(2, 4, 0)
    well, badly = pace.lengths([1, 2], [16, 16], 0.0)
    assert well > 4 > badly


def test_rounds_go_on_with_lengths_that_are_nearly_the_best() -> None:
    """To begin again takes a few: not for another length that gains less than that."""
    times = Times(lambda n: n, True)
    for _ in range(3):
        times.ran_plain(1, 1.0)
        for rows in (2, 3, 4):
            times.ran(rows, 1.1, follow=True)
    pace = Pace(3, 128, times)
    for _ in range(50):
        pace.outcome(7, 1, 1)
        pace.outcome(7, 1, 0)  # half of them come true
    step = 0.15

    def pays(n: int, by: float, room: int = 3) -> bool:
        return pace.pays([7], [room], step, n, by)

    # Of one, two and three guesses 1.50, 1.75 and 1.88 tokens in 1.25, 1.40 and 1.55.
    assert pays(2, 1.0) and pays(1, 1.08) and pays(3, 1.08)
    assert not pays(1, 1.02) and not pays(3, 1.02)
    assert pays(3, 1.0, room=1)  # those that there is no room for are not made
    assert not pays(2, 1.0, room=0) and not pays(0, float("inf"))
    too_many = 0
    while pays(3, float("inf")):
        too_many += not pays(3, 1.08)
        pace.outcome(7, 1, 0)
    assert too_many  # fewer still paid
    assert pace.lengths([7], [3], step) == [0]  # plain runs are faster


def test_a_plain_run_now_and_then_says_what_those_take() -> None:
    times = Times(lambda n: n, True)
    for follow, n in ((False, CHECK), (True, FOLLOWING * CHECK)):
        for _ in range(3):
            times.ran_plain(1, 1.0)
        times.ran(2, n - 1.0, n - 1, follow)
        assert times.plain(1) == 1.0
        times.ran(2, 1.0, 1, follow)
        assert times.plain(1) is None


def test_acceptance_forgets() -> None:
    a = Acceptance()
    for _ in range(100):
        a.add(4, 4)
    assert a.rate > 0.98
    for _ in range(30):
        a.add(4, 0)
    assert a.rate < 0.4
    assert Acceptance(100, 20).like().rate == pytest.approx(0.2)


def test_clocks_leave_out_first_runs_and_sudden_ones() -> None:
    clock = Clock(is_host=True)
    clock.add(4, 100.0)
    assert clock.seconds(4) is None
    for seconds in (2.0, 2.0, 200.0, 2.0):
        clock.add(4, seconds)
    assert clock.seconds(4) == pytest.approx(2.0, rel=0.1)
    for _ in range(2):
        clock.add(8, 4.0)
    assert clock.seconds(6) == pytest.approx(3.0, rel=0.1)
    for _ in range(2):
        clock.add(6, 50.0)  # fewer rows never take longer: another program did
    assert clock.seconds(6) == pytest.approx(4.0)
    on_device = Clock(is_host=False)
    on_device.add(1, 100.0)
    on_device.add(1, 100.0)
    on_device.add(1, 3.0)
    assert on_device.seconds(1) == 3.0
