"""Which neurons a device keeps: an integer program over groups of neurons.

A multiple-choice knapsack: of each layer exactly one choice (how many groups of its most active
neurons are on the device), all of them together within the budget, so that the expected time of a
token is least. The time of a choice is tabulated, so that the longer of two processors working at
the same time and the cost of meeting need no linearization. HiGHS (through scipy) solves it; the
greedy answer stands in where scipy is missing or the solver fails, and bounds what it may answer.

The idea of placing neurons by an integer program is PowerInfer's (Song et al. 2023, arXiv
2312.12456, section 6.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

import numpy as np

from gguflow.engine.dataclass import dataclass

from .costs import LayerCosts, NeuronBytes, Speeds, layer_costs
from .greedy import solve_greedy
from .split import NeuronSplit

GROUP = 128  # neurons that move together, fewer in small layers:
LEAST_GROUPS = 48
TIME_LIMIT_S = 10.0
GAP = 1e-6  # of the time, within which an answer counts as the best


@dataclass(frozen=True)
class Choice:
    """A placement and what is expected of it.

    groups: choice of each of `layers`. method: "milp" or "greedy"; reason: why greedy, if it is.
    greedy_s: seconds of the greedy answer, for comparison.
    """

    layers: tuple[LayerCosts, ...]
    groups: tuple[int, ...]
    method: str
    reason: str
    greedy_s: float

    @property
    def seconds(self) -> float:
        """Expected of one token in all sparse layers."""
        return _seconds(self.layers, self.groups)

    @property
    def n_bytes(self) -> int:
        """On the device."""
        return _bytes(self.layers, self.groups)

    @property
    def split(self) -> NeuronSplit:
        buckets = tuple(c.bucket(g) for c, g in zip(self.layers, self.groups, strict=True))
        return NeuronSplit(len(self.layers[0].order), buckets)


def choose_split(
    probabilities: Sequence[np.ndarray],
    neurons: Sequence[NeuronBytes],
    budget: int,
    speeds: Speeds,
    group: int = 0,
    exact: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
) -> Choice:
    """Choose the neurons of each layer that the device keeps.

    probabilities: [n_ff] a layer, the share of tokens for which each neuron is active. neurons:
    bytes of a neuron's rows by layer. budget: bytes on the device for all of them. group: neurons
    that move together, 0 to choose. exact: activity is found by the gate, not predicted.
    Raises ValueError for a negative budget.
    """
    if budget < 0:
        raise ValueError(f"a budget of {budget} bytes")
    layers = tuple(
        layer_costs(p, n, speeds, group or _group(len(p)), exact)
        for p, n in zip(probabilities, neurons, strict=True)
    )
    greedy = solve_greedy(layers, budget)
    greedy_s = _seconds(layers, greedy)
    try:
        groups = solve_milp(layers, budget, time_limit_s)
    except ImportError:
        return Choice(layers, tuple(greedy), "greedy", "scipy is not installed", greedy_s)
    if groups is None:
        return Choice(layers, tuple(greedy), "greedy", "the solver found nothing in time", greedy_s)
    if _bytes(layers, groups) > budget or _seconds(layers, groups) > greedy_s:
        reason = "the solver's answer was no better"
        return Choice(layers, tuple(greedy), "greedy", reason, greedy_s)
    return Choice(layers, tuple(groups), "milp", "", greedy_s)


def solve_milp(layers: Sequence[LayerCosts], budget: int, time_limit_s: float) -> list[int] | None:
    """The groups on the device by layer, or None when none was found in time.

    Variables y[l, g] in {0, 1}; minimize sum seconds[l, g] y[l, g]; of each layer exactly one;
    sum n_bytes[l, g] y[l, g] <= budget. Raises ImportError without scipy.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    options = [_useful(c, budget) for c in layers]
    seconds = np.concatenate([c.seconds[o] for c, o in zip(layers, options, strict=True)])
    n_bytes = np.concatenate([c.n_bytes[o] for c, o in zip(layers, options, strict=True)])
    of_layer = np.repeat(np.arange(len(layers)), [len(o) for o in options])
    one_each = csr_array(
        (np.ones(len(of_layer)), (of_layer, np.arange(len(of_layer)))),
        shape=(len(layers), len(of_layer)),
    )
    # The solver's tolerances are absolute, about 1e-6: in these units that is nothing in time and
    # less than an allocation's alignment in bytes.
    time_unit = max(seconds.max(), 1e-12)
    byte_unit = float(n_bytes[n_bytes > 0].min(initial=1 << 20))
    result = milp(
        seconds / time_unit,
        integrality=np.ones(len(seconds)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),  # type: ignore[arg-type]
            LinearConstraint(n_bytes[None, :] / byte_unit, -np.inf, budget / byte_unit),
        ],
        options={"time_limit": time_limit_s, "mip_rel_gap": GAP},
    )
    if result.x is None:
        return None
    starts = np.append(0, np.cumsum([len(o) for o in options]))
    picked = [int(result.x[a:b].argmax()) for a, b in zip(starts[:-1], starts[1:], strict=True)]
    return [int(o[k]) for o, k in zip(options, picked, strict=True)]


def _group(n_ff: int) -> int:
    return max(1, min(GROUP, n_ff // LEAST_GROUPS))


def _useful(layer: LayerCosts, budget: int) -> np.ndarray:
    """The choices within the budget that are faster than every one that takes no more bytes."""
    by_bytes = np.lexsort((layer.seconds, layer.n_bytes))
    before = np.append(np.inf, np.minimum.accumulate(layer.seconds[by_bytes])[:-1])
    keep = (layer.seconds[by_bytes] < before) & (layer.n_bytes[by_bytes] <= budget)
    return by_bytes[keep]


def _seconds(layers: Sequence[LayerCosts], groups: Sequence[int]) -> float:
    # Exactly rounded: equal layers may be chosen in any order and must not differ.
    return fsum(c.seconds[g] for c, g in zip(layers, groups, strict=True))


def _bytes(layers: Sequence[LayerCosts], groups: Sequence[int]) -> int:
    return int(sum(c.n_bytes[g] for c, g in zip(layers, groups, strict=True)))
