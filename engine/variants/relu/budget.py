"""What fits on a device: everything else a model needs there first, then neurons.

In this order the budget is spent: attention, predictors, norms and output head, KV cache, scratch
memory, then the rows of neurons. All figures are those of compiled plans, not estimates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gguflow.engine.compile import Plan, SpaceBytes, human_bytes

from .solve import Choice
from .split import NeuronSplit

PlanFor = Callable[[NeuronSplit], Plan]  # the largest plan of a model with this split


class BudgetError(MemoryError):
    """A budget that does not hold what comes before the first neuron."""


def describe(b: SpaceBytes) -> str:
    """`weights 1.20 GiB, KV cache 256.00 MiB, work memory 3.00 MiB`."""
    return (
        f"weights {human_bytes(b.weights)}, KV cache {human_bytes(b.states)}, "
        f"work memory {human_bytes(b.working)}"
    )


def no_neurons(n_layer: int, n_ff: int) -> NeuronSplit:
    """The split that leaves all neurons to the host."""
    return NeuronSplit(n_ff, (np.zeros(0, np.int32),) * n_layer)


def fit(
    budget: int,
    space: str,
    n_layer: int,
    n_ff: int,
    plan_for: PlanFor,
    choose: Callable[[int], Choice],
) -> tuple[Choice, SpaceBytes]:
    """The best choice whose plan stays within the budget, and the bytes of that plan.

    choose: the best choice for so many bytes of neurons. Raises BudgetError with the figures when
    there is no room even without any.
    """
    least = plan_for(no_neurons(n_layer, n_ff)).bytes_by_space()[space]
    if least.total > budget:
        raise BudgetError(
            f"{human_bytes(budget)} for {space}: {human_bytes(least.total)} are needed before the "
            f"first neuron ({describe(least)})"
        )
    room = budget - least.total
    while True:
        choice = choose(room)
        used = plan_for(choice.split).bytes_by_space()[space]
        if used.total <= budget or room == 0:
            return choice, used
        # Halves take work memory of their own, for what they exchange.
        room = max(0, room - (used.total - budget))
