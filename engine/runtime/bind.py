"""Binding: a plan gets addresses and is lowered to programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from gguflow.engine import env
from gguflow.engine.backends.base import (
    Backend,
    Buffer,
    DraftStep,
    Live,
    RoundLoop,
    RoundMemory,
    TokenLoop,
)
from gguflow.engine.compile import Plan, UnlinkableError
from gguflow.engine.compile.batch_rows import check_live, most_rows
from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.graph import Role, Tensor, exchanged
from gguflow.engine.plan_key import STATES
from gguflow.engine.profile import PlanRows

from .arrays import Arrays
from .exchange import SideBySide
from .places import (
    Alloc,
    BoundCopy,
    BoundMemory,
    SpaceMemory,
    alloc_copies,
    alloc_shared,
    bound_copy,
    host_array,
    host_row,
    lay_out,
)
from .program import Runner
from .sides import Sides, cut, pinned
from .turns import Turns
from .workspace import Workspace


class Outputs(Arrays):
    """A plan's outputs after a run, as arrays that the next run overwrites. Those that lie only on
    a device are fetched when they are indexed."""

    def __init__(self, memory: BoundMemory, tensors: Sequence[Tensor]) -> None:
        self._memory = memory
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def _fetch(self, index: int) -> np.ndarray:
        return host_array(self._memory, self._tensors[index])

    def row(self, index: int, i: int) -> np.ndarray:
        """Row i of an output, without fetching the others."""
        return host_row(self._memory, self._tensors[index], i)


@dataclass
class BoundPlan:
    """A lowered plan. Inputs are numpy arrays to write before `run`; outputs are arrays to read.

    runner: how it runs. unlinked: why a plan of several segments does not run side by side.
    """

    plan: Plan
    memory: BoundMemory
    runner: Runner
    inputs: dict[str, np.ndarray]
    outputs: Outputs
    unlinked: str | None = None
    brought: list[BoundCopy] = field(default_factory=list)  # before every run
    _rounds: tuple[RoundLoop | None, Sequence[BoundPlan]] | None = None  # and whose drafts

    def run(self, live: Live | None = None) -> None:
        """Run the plan once.

        live: rows that count, by name: {"tokens": 77, "outputs": 1}. Backends may leave out the
        rows behind them, whose values are then those of an earlier run. Raises RowsError for more
        than the plan has, or none.
        """
        self._begin(live)
        self.runner.run(live)

    def prepare(self) -> None:
        """Make ready for a `begin` while another plan's run is under way."""
        self.runner.prepare()

    def begin(self, live: Live | None = None, timed: bool = False) -> None:
        """Start a run and return where that is possible. Its inputs stay as they are and it is not
        begun again until it has ended; others, of other bound plans, may begin before. timed: with
        clocks, where the runner keeps them."""
        self._begin(live)
        self.runner.begin(live, timed)

    def end(self) -> None:
        """Wait for the run that has begun; runs end in the order in which they began."""
        self.runner.end()

    def run_timed(self, live: Live | None = None) -> tuple[PlanRows, np.ndarray]:
        """The same with clock readings: the rows of what ran, and for each its start and end, int64
        [n_rows, 2] nanoseconds."""
        self._begin(live)
        return self.rows, self.runner.run_timed(live)

    def _begin(self, live: Live | None) -> None:
        if live is not None:
            check_live(live, self.most_rows)
        for c in self.brought:
            c.run()

    @cached_property
    def most_rows(self) -> dict[str, int]:
        """How many rows it is made for, by name."""
        return most_rows(self.plan.graph, self.memory.rows.values())

    @property
    def rows(self) -> PlanRows:
        """What a profile knows of this plan."""
        return self.runner.rows

    @cached_property
    def token_loop(self) -> TokenLoop | None:
        """Steps that need no host, for a plan on devices alone that samples a token for each of its
        own; each must be alone in its sequence."""
        tensors = self._loop_tensors()
        return None if tensors is None else self.runner.token_loop(tensors, self.brought)

    def round_loop(self, keep: RoundMemory, drafts: Sequence[BoundPlan] = ()) -> RoundLoop | None:
        """The same for a plan that checks guesses, several rows a sequence, see
        `Program.round_loop`. keep: always the same one. drafts: the plans of a draft's first step
        of a round and of its next ones. None also where there are recurrent states, which have seen
        wrong guesses after a round."""
        known = self._rounds
        if known is None or [*map(id, known[1])] != [*map(id, drafts)]:
            self._rounds = known = self._round_loop(keep, drafts), drafts
        return known[0]

    def _round_loop(self, keep: RoundMemory, drafts: Sequence[BoundPlan]) -> RoundLoop | None:
        found = [p._loop_tensors() for p in (self, *drafts)]
        tensors = [t for t in found if t is not None and f"rows.{STATES}" not in t]
        alone = all(len(p.runner.programs) == 1 and not p.brought for p in drafts)
        if len(tensors) < len(found) or not alone:
            return None
        mine, *others = tensors
        steps = [DraftStep(p.runner.programs[0], t) for p, t in zip(drafts, others, strict=True)]
        return self.runner.round_loop(mine, self.brought, keep, steps)

    def _loop_tensors(self) -> dict[str, Tensor] | None:
        """The inputs by name, and the sampled tokens as `token`; None where a step cannot write the
        next one's inputs."""
        inputs = {t.name: t for t in self.plan.leaves(Role.INPUT)}
        sampled = self.plan.graph.outputs[-1]
        if not self.plan.feeds_itself:
            return None
        rows = [name.removeprefix("rows.") for name in inputs if name.startswith("rows.")]
        if any(f"table.{group}" not in inputs for group in rows if group != STATES):
            return None
        return {**inputs, "token": sampled}


def bind(
    plan: Plan,
    backends: Mapping[str, Backend],
    weights: Mapping[str, Buffer],
    packed: set[str],
    states: Mapping[str, Buffer],
    arenas: Mapping[str, Buffer],
    n_threads: int | None = None,
    workspace: Workspace | None = None,
) -> BoundPlan:
    """Give the plan addresses and lower it. Arenas must be at least as large as it asks. A plan
    over several devices, or the host and some, runs side by side where that is possible, unless
    GGUFLOW_LINK=0. workspace: what its devices exchange over, its own if it is None.

    Raises ValueError for a plan that would write a state from another memory space, and
    UnlinkableError for one that exchanges values but cannot run side by side.
    """
    memory = BoundMemory(plan, weights, packed, states, alloc_shared(plan, backends), arenas)
    sides, unlinked = _sides(plan, backends)
    workspace = Workspace() if workspace is None else workspace
    workspace.reserve(plan, backends)
    crossing: dict[str, Alloc] = {}
    if sides is not None and sides.host is not None:
        device = backends[sides.devices[0]]

        def alloc(nbytes: int) -> Buffer:
            return pinned(device, nbytes)

        crossing[plan.spaces[sides.host]] = alloc
        memory.sent = lay_out(sides.sent, alloc)
    memory.copies = alloc_copies(plan, backends, crossing, workspace.room)
    brought = []
    held = {b.space for b in backends.values() if b.holds}
    for c in plan.brought:
        if c.target not in held:
            continue  # whoever holds the other part has the file too, and is given inputs
        copy = bound_copy(memory, c.owner, c.target)
        if c.owner.role is Role.WEIGHT:  # never changes
            copy.run()
        else:
            brought.append(copy)
    views = {b: SpaceMemory(memory, space) for b, space in plan.spaces.items()}
    runner: Runner
    if sides is not None:
        runner = SideBySide(plan, sides, backends, views, workspace, n_threads)
    else:
        runner = Turns(plan, backends, memory, views, n_threads)
    arrays = {t.name: host_array(memory, t) for t in plan.leaves(Role.INPUT)}
    outputs = Outputs(memory, plan.graph.outputs)
    return BoundPlan(plan, memory, runner, arrays, outputs, unlinked, brought)


def _sides(plan: Plan, backends: Mapping[str, Backend]) -> tuple[Sides | None, str | None]:
    """How to run a plan side by side, or why not."""
    if len(plan.segments) < 2:
        return None, None
    try:
        if not env.link():
            raise UnlinkableError("GGUFLOW_LINK=0")
        return cut(plan, backends), None
    except UnlinkableError as e:
        if any(exchanged(n) for n in plan.nodes):
            raise
        return None, str(e)
