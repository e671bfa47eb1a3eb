"""What fits on a device: everything else a model needs there first, then neurons.

In this order the budget is spent: attention, predictors, norms and output head, KV cache, scratch
memory, then the rows of neurons. All figures are those of compiled plans, not estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gguflow.engine.compile import Plan, human_bytes, round_up
from gguflow.engine.graph import Role, Tensor

from .solve import Choice
from .split import NeuronSplit

PlanFor = Callable[[NeuronSplit], Plan]  # the largest plan of a model with this split
ScratchFor = Callable[[list[Tensor]], int]  # temporary bytes the device needs for these nodes


class BudgetError(MemoryError):
    """A budget that does not hold what comes before the first neuron."""


@dataclass(frozen=True)
class DeviceBytes:
    """Bytes of one plan on the device. copies: values brought there from other memory; results:
    small outputs, which lie outside of the arena."""

    weights: int
    states: int
    inputs: int
    arena: int
    copies: int
    results: int
    scratch: int

    @property
    def total(self) -> int:
        return sum(vars(self).values())

    def describe(self) -> str:
        """`weights 1.20 GiB, KV cache 256.00 MiB, work memory 3.00 MiB`."""
        work = self.inputs + self.arena + self.copies + self.results + self.scratch
        return (
            f"weights {human_bytes(self.weights)}, KV cache {human_bytes(self.states)}, "
            f"work memory {human_bytes(work)}"
        )


def device_bytes(plan: Plan, space: str, scratch: ScratchFor | None = None) -> DeviceBytes:
    """What a plan takes in a memory space."""
    b = plan.bytes_by_space()[space]
    copied = {c.owner for s in plan.segments for c in s.copies if c.target == space}
    results = {t.owner for t in plan.graph.outputs if t.owner.role is Role.NODE}
    here = [n for n in plan.nodes if plan.space_of(n) == space]
    return DeviceBytes(
        weights=b.weights,
        states=b.states,
        inputs=b.inputs,
        arena=b.arena,
        copies=sum(round_up(t.nbytes) for t in copied),
        results=sum(round_up(t.nbytes) for t in results if plan.space_of(t) == space),
        scratch=scratch(here) if scratch else 0,
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
    scratch: ScratchFor | None = None,
) -> tuple[Choice, DeviceBytes]:
    """The best choice whose plan stays within the budget, and the bytes of that plan.

    choose: the best choice for so many bytes of neurons. Raises BudgetError with the figures when
    there is no room even without any.
    """
    least = device_bytes(plan_for(no_neurons(n_layer, n_ff)), space, scratch)
    if least.total > budget:
        raise BudgetError(
            f"{human_bytes(budget)} for {space}: {human_bytes(least.total)} are needed before the "
            f"first neuron ({least.describe()})"
        )
    room = budget - least.total
    while True:
        choice = choose(room)
        used = device_bytes(plan_for(choice.split), space, scratch)
        if used.total <= budget or room == 0:
            return choice, used
        # Halves take work memory of their own, for what they exchange.
        room = max(0, room - (used.total - budget))
