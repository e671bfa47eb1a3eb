"""Placement: the budget holds, the integer program is never worse than the greedy answer."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguflow.engine.variants.relu.costs import NeuronBytes, Side, Speeds, layer_costs
from gguflow.engine.variants.relu.greedy import solve_greedy
from gguflow.engine.variants.relu.solve import choose_split, solve_milp

SPEEDS = Speeds(Side(1e9, 1e-6), Side(20e9, 2e-6), 1e-6)
NEURON = NeuronBytes(64, 64, 64)


@st.composite
def problems(draw):
    """(probabilities, neuron bytes, speeds, group, exact)"""
    n_layer, n_ff = draw(st.integers(1, 4)), draw(st.integers(1, 90))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    power = draw(st.sampled_from([0.0, 1.0, 4.0]))
    p = [rng.random(n_ff) ** power * draw(st.sampled_from([0.0, 0.1, 1.0])) for _ in range(n_layer)]
    row = st.integers(1, 300)
    neurons = [NeuronBytes(draw(row), draw(row), draw(row)) for _ in range(n_layer)]
    second = st.sampled_from([0.0, 1e-7, 1e-6])
    side = st.builds(Side, st.sampled_from([1e8, 1e9, 1e11]), second)
    speeds = draw(st.builds(Speeds, side, side, second))
    return p, neurons, speeds, draw(st.sampled_from([1, 7, 16, 128])), draw(st.booleans())


def everything(p, neurons) -> int:
    return sum(n.on_device(len(q), len(q)) for q, n in zip(p, neurons, strict=True))


@given(problems(), st.floats(0, 1.2))
@settings(max_examples=120, deadline=None)
def test_a_choice_holds_its_budget_and_is_no_worse_than_greedy(problem, share: float) -> None:
    p, neurons, speeds, group, exact = problem
    budget = int(share * everything(p, neurons))
    choice = choose_split(p, neurons, budget, speeds, group, exact)
    assert choice.n_bytes <= budget
    assert choice.seconds <= choice.greedy_s
    assert choice.seconds <= sum(c.seconds[0] for c in choice.layers) * (1 + 1e-12)
    split = choice.split
    real_bytes = 0
    for bucket, n, q in zip(split.buckets, neurons, p, strict=True):
        assert bucket.dtype == np.int32 and (np.diff(bucket) > 0).all()
        assert len(bucket) == 0 or (bucket[0] >= 0 and bucket[-1] < len(q))
        real_bytes += n.on_device(len(bucket), len(q))
        left = np.setdiff1d(np.arange(len(q)), bucket)
        if len(bucket) and len(left):
            assert q[bucket].min() >= q[left].max()
    assert real_bytes == choice.n_bytes


@given(problems(), st.lists(st.floats(0, 1.2), min_size=2, max_size=2))
@settings(max_examples=60, deadline=None)
def test_more_budget_is_never_slower(problem, shares: list[float]) -> None:
    p, neurons, speeds, group, exact = problem
    small, large = sorted(int(s * everything(p, neurons)) for s in shares)
    a = choose_split(p, neurons, small, speeds, group, exact)
    b = choose_split(p, neurons, large, speeds, group, exact)
    assert b.seconds <= a.seconds * (1 + 1e-5)


@given(problems(), st.floats(0, 1.2))
@settings(max_examples=60, deadline=None)
def test_the_integer_program_finds_the_best_of_all_choices(problem, share: float) -> None:
    p, neurons, speeds, _, exact = problem
    group = -(-len(p[0]) // 4)
    budget = int(share * everything(p, neurons))
    choice = choose_split(p, neurons, budget, speeds, group, exact)
    best = min(
        sum(c.seconds[g] for c, g in zip(choice.layers, groups, strict=True))
        for groups in itertools.product(*(range(len(c.cuts)) for c in choice.layers))
        if sum(c.n_bytes[g] for c, g in zip(choice.layers, groups, strict=True)) <= budget
    )
    assert choice.seconds == pytest.approx(best, rel=1e-5)


def power_law(n_ff: int, mean: float, seed: int) -> np.ndarray:
    rank = np.random.default_rng(seed).permutation(n_ff) + 1.0
    p = rank**-0.9
    return np.minimum(p * mean / p.mean(), 1.0)


def test_no_budget_keeps_nothing_and_all_of_it_everything() -> None:
    p = [power_law(500, 0.1, i) for i in range(3)]
    neurons = [NEURON] * 3
    none = choose_split(p, neurons, 0, SPEEDS)
    assert [len(b) for b in none.split.buckets] == [0, 0, 0] and none.n_bytes == 0
    enough = everything(p, neurons)
    whole = choose_split(p, neurons, enough, SPEEDS)
    assert [len(b) for b in whole.split.buckets] == [500] * 3
    assert whole.n_bytes == enough


def test_a_layer_that_starts_hotter_gets_more() -> None:
    p = [power_law(1024, 0.02, 0), power_law(1024, 0.3, 1)]
    choice = choose_split(p, [NEURON] * 2, everything(p, [NEURON] * 2) // 4, SPEEDS, 32)
    cold, hot = (len(b) for b in choice.split.buckets)
    assert hot > cold > 0


def test_a_slow_device_is_left_alone() -> None:
    slow = Speeds(Side(1e9), Side(1e6), 0.0)
    p = [power_law(256, 0.1, 0)]
    assert choose_split(p, [NEURON], 1 << 30, slow, 16).n_bytes == 0


def test_the_two_sides_are_balanced_when_they_are_equally_fast() -> None:
    same = Speeds(Side(1e9), Side(1e9), 0.0)
    choice = choose_split([np.full(1024, 0.1)], [NEURON], 1 << 30, same, 64)
    assert len(choice.split.buckets[0]) == 512
    layer, g = choice.layers[0], choice.groups[0]
    assert layer.host_s[g] == pytest.approx(layer.device_s[g])


def test_meeting_is_worth_avoiding_when_it_costs() -> None:
    p = [power_law(512, 0.1, i) for i in range(4)]
    neurons = [NEURON] * 4
    budget = everything(p, neurons) // 2
    costly = Speeds(Side(1e9), Side(20e9), 1.0)
    sizes = [len(b) for b in choose_split(p, neurons, budget, costly, 32).split.buckets]
    assert sizes.count(512) == 2


def test_exact_activity_reads_every_gate() -> None:
    n = NeuronBytes(10, 20, 30)
    p = np.array([0.0, 0.5, 1.0])
    assert n.read(p, exact=True).tolist() == [10, 35, 60]
    assert n.read(p, exact=False).tolist() == [0, 30, 60]


def test_without_scipy_the_greedy_answer_stands_in(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    p = [power_law(512, 0.1, i) for i in range(4)]
    choice = choose_split(p, [NEURON] * 4, everything(p, [NEURON] * 4) // 3, SPEEDS, 32)
    assert (choice.method, choice.reason) == ("greedy", "scipy is not installed")
    assert choice.seconds == choice.greedy_s and choice.n_bytes > 0


def test_a_solver_without_an_answer_leaves_the_greedy_one(monkeypatch) -> None:
    monkeypatch.setattr("gguflow.engine.variants.relu.solve.solve_milp", lambda *_: None)
    choice = choose_split([power_law(512, 0.1, 0)], [NEURON], 10000, SPEEDS, 32)
    assert choice.method == "greedy" and "in time" in choice.reason


def test_the_greedy_answer_can_be_beaten() -> None:
    """Three layers, room for the two good steps or the one that looks better by the byte."""
    layers = [
        layer_costs(np.full(n, p), NEURON, Speeds(Side(1e6), Side(1e12)), n)
        for n, p in ((60, 0.9), (50, 0.8), (50, 0.8))
    ]
    budget = int(layers[1].n_bytes[1] + layers[2].n_bytes[1])
    greedy, best = solve_greedy(layers, budget), solve_milp(layers, budget, 5.0)
    assert greedy == [1, 0, 0] and best == [0, 1, 1]


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        choose_split([np.ones(4)], [NEURON], -1, SPEEDS)


def test_a_large_model_is_placed_in_seconds() -> None:
    """80 layers of 28672 neurons: the 70B shape."""
    n = NeuronBytes(4608, 4608, 4608)
    p = [power_law(28672, 0.1, i) for i in range(80)]
    choice = choose_split(p, [n] * 80, 8 << 30, Speeds(Side(80e9), Side(3e12), 2e-5))
    assert choice.method == "milp" and choice.n_bytes <= 8 << 30
    assert choice.seconds < 0.7 * sum(c.seconds[0] for c in choice.layers)
