"""From a budget to a split: forecasts hold it, what is found is kept, too little is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "compile"))
from test_mixed_plan import RemoteBackend  # noqa: E402

from gguflow.engine.backends.base import find_backend
from gguflow.engine.backends.numpy import NumpyBackend
from gguflow.engine.compile import Plan
from gguflow.engine.graph import F32
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.planning import Planner, Setup, prompt_key
from gguflow.engine.variants.relu import place
from gguflow.engine.variants.relu.budget import BudgetError, fit, no_neurons
from gguflow.engine.variants.relu.costs import NeuronBytes, Side, Speeds
from gguflow.engine.variants.relu.device import Groups, overrides
from gguflow.engine.variants.relu.expect import expect
from gguflow.engine.variants.relu.identity import model_hash
from gguflow.engine.variants.relu.place import neuron_bytes, place_neurons
from gguflow.engine.variants.relu.run import sparse_run
from gguflow.engine.variants.relu.solve import Choice, choose_split
from gguflow.engine.variants.relu.source import with_hot_rows
from gguflow.engine.variants.relu.split import NeuronSplit, open_split
from gguflow.engine.variants.relu.stats import Activations
from gguflow.engine.variants.relu.store import NoStatsError
from gguflow.models.base import ModelError

SPEEDS = Speeds(Side(1e9), Side(50e9), 1e-7)
N_LAYER, N_FF = 2, 96
EVERYTHING = 1 << 30


class Hybrid:
    """A tiny model over a device with memory of its own; compiles plans for any split."""

    def __init__(self, path: Path) -> None:
        self.model = Model.load(
            path, k_type=F32, v_type=F32, backends=("cpu", "numpy"), sparse="predict"
        )
        self.source = self.model.source
        self.device, self.host = RemoteBackend(), find_backend("cpu", {"n_threads": 1})
        self.planner = Planner({"remote": self.device, "cpu": self.host, "numpy": NumpyBackend()})
        self.splits: list[NeuronSplit] = []
        rng = np.random.default_rng(1)
        counts = tuple(rng.integers(0, 1000, N_FF) for _ in range(N_LAYER))
        self.stats = Activations(counts, 1000, model_hash(self.source))

    def plan_for(self, split: NeuronSplit) -> Plan:
        self.splits.append(split)
        run = sparse_run(self.model.setup)
        assert run is not None
        rules = overrides(split.n_gpu, N_FF, Groups(N_LAYER, True), False, "remote", "cpu")
        options = Options(n_ctx=64, n_ubatch=8, k_type=F32, v_type=F32, overrides=rules,
                          backends=("remote", "cpu", "numpy"))  # fmt: skip
        source = with_hot_rows(self.source, split)
        setup = Setup(source, options, (replace(run, split=split),))
        return self.planner.plan(setup, prompt_key(options))

    def bytes_of(self, split: NeuronSplit) -> int:
        return self.plan_for(split).bytes_by_space()["remote:0"].total

    def place(self, budget: int, **more):
        more = {"stats": self.stats, "speeds": SPEEDS} | more
        return place_neurons(self.source, budget, self.device, self.host, self.plan_for, **more)


@pytest.fixture
def hybrid(write_relu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hybrid:
    monkeypatch.setenv("GGUFLOW_CACHE_DIR", str(tmp_path / "cache"))
    return Hybrid(write_relu())


def test_a_forecast_holds_its_budget_and_uses_it(hybrid: Hybrid) -> None:
    least = hybrid.bytes_of(no_neurons(N_LAYER, N_FF))
    most = hybrid.place(EVERYTHING)
    assert most.split.n_gpu == (N_FF, N_FF)
    before = 0
    for share in (0.1, 0.35, 0.8):
        budget = least + int(share * (most.used.total - least))
        placed = hybrid.place(budget)
        used = hybrid.bytes_of(placed.split)
        assert used == placed.used.total <= budget
        assert used > budget - 40 * 768  # a few neurons and what the halves exchange
        assert sum(placed.split.n_gpu) > before
        before = sum(placed.split.n_gpu)
        kept = open_split(placed.path)
        assert kept.split == placed.split and kept.vram_bytes == budget


def test_too_little_is_refused_with_the_figures(hybrid: Hybrid) -> None:
    least = hybrid.bytes_of(no_neurons(N_LAYER, N_FF))
    assert hybrid.place(least).split.n_gpu == (0, 0)
    with pytest.raises(BudgetError, match=r"needed before the first neuron \(weights .*KV cache"):
        hybrid.place(least - 1)


def test_a_kept_split_is_read_back_for_the_same_facts_alone(hybrid: Hybrid, monkeypatch) -> None:
    solved: list[int] = []

    def counted(*args, **more) -> Choice:
        solved.append(1)
        return choose_split(*args, **more)

    monkeypatch.setattr(place, "choose_split", counted)
    least = hybrid.bytes_of(no_neurons(N_LAYER, N_FF))
    budget = least + 40_000
    first = hybrid.place(budget)
    n = len(solved)
    assert n and first.choice is not None
    again = hybrid.place(budget)
    assert len(solved) == n and again.choice is None
    assert (again.split, again.path, again.used) == (first.split, first.path, first.used)
    assert hybrid.place(budget, again=True).choice is not None
    assert hybrid.place(budget + 20_000).path != first.path  # another budget
    other = Activations(hybrid.stats.counts[::-1], 1000, hybrid.stats.model_hash)
    assert hybrid.place(budget, stats=other).path != first.path
    assert hybrid.place(budget, exact=True).path != first.path


def test_speeds_are_measured_where_none_are_given(hybrid: Hybrid, monkeypatch) -> None:
    monkeypatch.setattr(place, "measure", lambda device, host, shape, n: SPEEDS)
    assert hybrid.place(EVERYTHING, speeds=None).speeds is SPEEDS


def test_statistics_are_needed_and_must_be_of_the_model(hybrid: Hybrid) -> None:
    with pytest.raises(NoStatsError, match="gguflow sparse stats"):
        hybrid.place(EVERYTHING, stats=None)
    wrong = Activations(hybrid.stats.counts, 1000, "00" * 16)
    with pytest.raises(ModelError, match="statistics of another model"):
        hybrid.place(EVERYTHING, stats=wrong)


def test_work_memory_of_a_split_is_taken_off_what_neurons_get() -> None:
    """Plans that need 1000 bytes more as soon as there is a neuron."""
    neuron = [NeuronBytes(64, 64, 64)]
    p = [np.full(N_FF, 0.5)]

    class Figures:
        def __init__(self, split: NeuronSplit) -> None:
            n = split.n_gpu[0]
            self.total = 5000 + (1000 if n else 0) + neuron[0].on_device(n, N_FF)

        def bytes_by_space(self) -> dict[str, Figures]:
            return {"d": self}

    def choose(room: int) -> Choice:
        return choose_split(p, neuron, room, SPEEDS, group=1)

    choice, used = fit(10_000, "d", 1, N_FF, Figures, choose)  # type: ignore[arg-type]
    assert used.total <= 10_000 and choice.split.n_gpu[0] == (4000 - 128) // 192
    choice, used = fit(5_500, "d", 1, N_FF, Figures, choose)  # type: ignore[arg-type]
    assert choice.split.n_gpu == (0,) and used.total == 5000


def test_what_is_expected_of_a_solution_is_what_it_was_chosen_by(hybrid: Hybrid) -> None:
    neurons = neuron_bytes(hybrid.source)
    choice = choose_split(hybrid.stats.probabilities, neurons, 60_000, SPEEDS)
    layers = expect(choice.split, hybrid.stats.probabilities, neurons, SPEEDS)
    assert sum(x.seconds for x in layers) == pytest.approx(choice.seconds)
    assert sum(x.n_bytes for x in layers) == choice.n_bytes
    assert all(x.hot > x.n_gpu / N_FF for x in layers if 0 < x.n_gpu < N_FF)
