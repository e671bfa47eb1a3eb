"""sample: its generator and exponential against published values, its filters by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import reference

from gguflow.engine.ops.sample import exp32, uniform

P = np.array([0.15, 0.5, 0.1, 0.25])  # descending: tokens 1, 3, 0, 2


def sample(
    logits: Any, *settings: float, seed: int = 0, step: int = 0, history: Any = (-1,)
) -> int:
    full = (*settings, *(1, 0, 1, 0, 1, 0)[len(settings) :], 0, 0)
    got = reference(
        "sample",
        np.float32([logits]),
        np.float32([full]),
        np.array([[seed, step]], np.int64),
        np.array([history], np.int32),
    )
    assert got.shape == (1,) and got.dtype == np.int32
    return int(got[0])


def drawn(logits: Any, *settings: float, n: int = 200, **more: Any) -> set[int]:
    return {sample(logits, *settings, step=i, **more) for i in range(n)}


def test_the_generator_is_splitmix64() -> None:
    # The first outputs of the reference implementation for these seeds.
    known = {
        0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F],
        1234567: [6457827717110365317, 3203168211198807973, 9817491932198370423],
    }
    for seed, outputs in known.items():
        for step, z in enumerate(outputs):
            u = uniform(seed, step)
            assert u.dtype == np.float32 and u == (z >> 40) / 2**24
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)


def test_exp32_is_within_two_units_of_exp() -> None:
    x = -np.linspace(0, 87, 100_001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(exp32(x) - exact) / exact).max() < 2 * 2.0**-24
    np.testing.assert_array_equal(exp32(np.float32([0, -87.1, -np.inf])), [1, 0, 0])
    # To the bit: here the nearest float32 to exp, for other implementations to hold on to.
    bits = exp32(np.float32([-0.5, -1, -10, -80.25])).view(np.uint32)
    assert [hex(b) for b in bits] == ["0x3f1b4598", "0x3ebc5ab2", "0x383e6bce", "0x595789b"]


def test_draws_follow_the_probabilities() -> None:
    n = 4000
    counts = np.bincount([sample(np.log(P), seed=3, step=i) for i in range(n)], minlength=4)
    assert (np.abs(counts - n * P) < 4 * np.sqrt(n * P * (1 - P))).all()
    hot = np.sqrt(P) / np.sqrt(P).sum()  # temperature two halves the logits
    counts = np.bincount([sample(np.log(P), 2.0, seed=3, step=i) for i in range(n)], minlength=4)
    assert (np.abs(counts - n * hot) < 4 * np.sqrt(n * hot * (1 - hot))).all()


@pytest.mark.parametrize(
    "settings, tokens",
    [
        ((1.0,), {0, 1, 2, 3}),
        ((0.0,), {1}),
        ((-1.0, 2), {1}),
        ((0.01,), {1}),
        ((1.0, 2), {1, 3}),
        ((1.0, -1), {0, 1, 2, 3}),
        ((1.0, 99), {0, 1, 2, 3}),
        ((1.0, 0, 0.45), {1}),
        ((1.0, 0, 0.7), {1, 3}),
        ((1.0, 0, 0.8), {0, 1, 3}),
        ((1.0, 0, 0.0), {1}),
        ((1.0, 0, 1, 0.4), {1, 3}),
        ((1.0, 0, 1, 0.25), {0, 1, 3}),
        ((1.0, 0, 1, 2.0), {1}),
        # Of the two that top_k leaves the first has 0.67: enough for top_p, as 0.5 would not be.
        ((1.0, 2, 0.6), {1}),
        # top_p and min_p look at the probabilities before temperature flattens them.
        ((50.0, 0, 0.7), {1, 3}),
        ((50.0, 0, 1, 0.4), {1, 3}),
    ],
)
def test_filters(settings: tuple[float, ...], tokens: set[int]) -> None:
    assert drawn(np.log(P), *settings) == tokens


def test_equals_go_by_id() -> None:
    assert sample([0, 2, 2, 1], 0.0) == 1
    assert drawn([0, 2, 2, 2], 1.0, 2) == {1, 2}


def test_masked_tokens_are_never_drawn() -> None:
    assert drawn([-np.inf, 0, -np.inf, 0], 1.0) == {1, 3}
    assert sample([-np.inf, -np.inf, -5], 1.0) == 2


@pytest.mark.parametrize(
    "history, last_n, penalty, expected",
    [
        ([1], -1, 1.0, 1),  # off
        ([1], 0, 3.0, 1),  # off
        ([-1, -1], -1, 3.0, 1),  # empty
        ([1], -1, 3.0, 3),  # 9 / 3 falls below 4
        ([1, 1, 1], -1, 2.0, 1),  # once, however often: 9 / 2 stays above
        ([1, 3], 1, 3.0, 1),  # only the newest, token 3
        ([1, 0], 2, 3.0, 3),
        ([1, 3], 64, 10.0, 1),  # 0.9 is still above 0.4 and 0.1
        ([1, 7, -5], -1, 3.0, 3),  # ids outside the vocabulary are no tokens
    ],
)
def test_penalty(history: list[int], last_n: int, penalty: float, expected: int) -> None:
    logits = [-2, 9, 0.1, 4]
    assert sample(logits, 0.0, 0, 1, 0, penalty, last_n, history=history) == expected


def test_penalty_makes_negative_logits_more_negative() -> None:
    assert sample([-2, -3], 0.0, 0, 1, 0, 2.0, -1, history=[0]) == 1


def test_a_step_is_a_function_of_seed_and_step() -> None:
    flat = np.zeros(1000)
    first = [sample(flat, seed=7, step=i) for i in range(50)]
    assert first == [sample(flat, seed=7, step=i) for i in range(50)]
    assert first != [sample(flat, seed=8, step=i) for i in range(50)]
    assert len(set(first)) > 40
