"""From a budget to a split: statistics, measured speeds, the solver, and what is kept of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from gguflow.engine.backends.base import Backend
from gguflow.engine.compile import SpaceBytes
from gguflow.engine.dataclass import dataclass
from gguflow.engine.files import private_folder
from gguflow.engine.load import ModelSource

from .budget import PlanFor, fit, no_neurons
from .costs import NeuronBytes, Speeds
from .solve import Choice, choose_split
from .speeds import LayerShape, measure
from .split import NeuronSplit, read_split, write_split
from .stats import Activations
from .store import check_stats, model_stats, split_path


@dataclass(frozen=True)
class Placed:
    """A split for a budget. path: the file it is kept in; used: bytes on the device, forecast;
    choice: how it was found and speeds: for which processors, None where it was read back."""

    split: NeuronSplit
    path: Path
    used: SpaceBytes
    choice: Choice | None
    speeds: Speeds | None


def layer_shapes(source: ModelSource) -> list[LayerShape]:
    """The feed-forward layers of a model."""
    hp = source.arch.hp

    def dtype(i: int, part: str) -> Any:
        w = source.weights.get(f"blk.{i}.ffn_{part}.weight")
        return w.dtype if w is not None else None

    return [
        LayerShape(hp.n_embd, hp.n_ff, dtype(i, "gate"), dtype(i, "up"), dtype(i, "down_t"))
        for i in range(hp.n_layer)
    ]


def neuron_bytes(source: ModelSource) -> list[NeuronBytes]:
    """Bytes of a neuron's rows, by layer."""
    return [s.neuron for s in layer_shapes(source)]


def place_neurons(
    source: ModelSource,
    budget: int,
    device: Backend,
    host: Backend,
    plan_for: PlanFor,
    exact: bool = False,
    n_threads: int | None = None,
    stats: Activations | None = None,
    speeds: Speeds | None = None,
    again: bool = False,
) -> Placed:
    """The split for `budget` bytes on the device, all of the model's use there included.

    plan_for: compiles the largest plan of the model with a given split, needing no weights in
    memory. stats: by default the model's (`store.model_stats`). speeds: measured when not given.
    again: solve even when a split for the same model, budget and statistics is kept.

    Raises NoStatsError naming the command that counts, BudgetError with the figures when the budget
    does not hold what comes first, SpeedError, GgufError for a kept file that was damaged.
    """
    hp = source.arch.hp
    stats = model_stats(source) if stats is None else check_stats(stats, source, "the statistics")
    shapes = layer_shapes(source)
    neurons = [s.neuron for s in shapes]
    least = plan_for(no_neurons(hp.n_layer, hp.n_ff)).bytes_by_space()[device.space]
    depends = (stats.hash, least.total, exact, device.name, n_threads, neurons, speeds)
    path = split_path(stats.model_hash, budget, *depends)
    if path.is_file() and not again:
        split = read_split(path, hp.n_layer, hp.n_ff, stats.model_hash)
        used = plan_for(split).bytes_by_space()[device.space]
        return Placed(split, path, used, None, None)
    speeds = speeds or measure(device, host, shapes[0], n_threads)
    choose = partial(_choose, stats, neurons, speeds, exact)
    choice, used = fit(budget, device.space, hp.n_layer, hp.n_ff, plan_for, choose)
    private_folder(path.parent)
    write_split(path, choice.split, stats.model_hash, budget)
    return Placed(choice.split, path, used, choice, speeds)


def _choose(
    stats: Activations, neurons: list[NeuronBytes], speeds: Speeds, exact: bool, n_bytes: int
) -> Choice:
    return choose_split(stats.probabilities, neurons, n_bytes, speeds, exact=exact)
