"""Pipelines: the simulation against closed formulas, and both against what is known."""

from __future__ import annotations

from random import Random

import pytest

from gguflow.engine.scaling.pipeline import bubbles, pass_seconds, round_seconds
from gguflow.engine.scaling.simulate import run_pipeline


@pytest.mark.parametrize("s", (1, 2, 3, 8, 64))
@pytest.mark.parametrize("m", (1, 2, 7, 64))
def test_bubbles(s: int, m: int) -> None:
    passed = run_pipeline([[1.0] * s] * m, 0.0)
    assert passed.seconds == m + s - 1 == pass_seconds([1.0] * s, m, 0.0)
    assert 1 - sum(passed.busy) / s == pytest.approx((s - 1) / (m + s - 1))
    assert bubbles(s, m) == pytest.approx((s - 1) / (m + s - 1))


def test_unequal_stages_and_hops() -> None:
    random = Random(1)
    for _ in range(50):
        stages = [random.uniform(0.1, 2) for _ in range(random.randint(1, 6))]
        m, hop = random.randint(1, 9), random.uniform(0, 1)
        passed = run_pipeline([stages] * m, hop)
        assert passed.seconds == pytest.approx(pass_seconds(stages, m, hop))


def test_pieces_that_differ() -> None:
    """By hand: the second stage waits for the long second piece."""
    passed = run_pipeline([[1, 1], [5, 1], [1, 4]], 0.5)
    assert passed.done == (2.5, 7.5, 11.5)


def test_tokens_that_go_around() -> None:
    random = Random(2)
    for _ in range(50):
        stages = [random.uniform(0.1, 2) for _ in range(random.randint(1, 6))]
        groups, hop = random.randint(1, 9), random.uniform(0, 1)
        many = [run_pipeline([stages] * groups, hop, rounds).seconds for rounds in (50, 150)]
        steady = (many[1] - many[0]) / 100  # without the first fill and the last drain
        assert steady == pytest.approx(round_seconds(stages, groups, hop), rel=0.02)


def test_more_groups_fill_the_stages() -> None:
    took = [round_seconds([1.0] * 4, g, 0.25) / g for g in (1, 2, 4, 5, 8)]
    assert took == [5.0, 2.5, 1.25, 1.0, 1.0]


def test_what_is_no_pipeline() -> None:
    for pieces, rounds in (([], 1), ([[]], 1), ([[1.0], [1.0, 2.0]], 1), ([[1.0]], 0)):
        with pytest.raises(ValueError, match="pieces with the same stages"):
            run_pipeline(pieces, 0.0, rounds)
