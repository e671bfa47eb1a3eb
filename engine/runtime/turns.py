"""In turns: a schedule cut where the backend changes. One program after the other is started and
finished, and what it receives is copied before it starts. A plan on one device is one program."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from gguflow.engine.backends.base import (
    Backend,
    DraftStep,
    Live,
    Memory,
    Program,
    RoundLoop,
    RoundMemory,
    Ticks,
    TokenLoop,
)
from gguflow.engine.compile import Plan, Recv
from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import Tensor
from gguflow.engine.profile import PlanRow, PlanRows

from .places import BoundCopy, BoundMemory, bound_copy
from .program import Runner, in_host_time, spans_of, step_rows


@dataclass(frozen=True)
class Part:
    """A program, and what must be copied before it starts."""

    copies: tuple[BoundCopy, ...]
    program: Program


class Turns(Runner):
    """Ready to run. views: the plan's memory as each backend sees it, by name."""

    def __init__(
        self,
        plan: Plan,
        backends: Mapping[str, Backend],
        memory: BoundMemory,
        views: Mapping[str, Memory],
        n_threads: int | None,
    ) -> None:
        received: dict[Tensor, list[BoundCopy]] = {}  # by the node that reads it first
        for step in plan.steps:
            if isinstance(step, Recv):
                m = step.meeting
                space = plan.spaces[m.target]
                copies = received.setdefault(m.before, [])
                copies += (bound_copy(memory, o, space) for o in m.owners)
        # Who has a device elsewhere fetches what it needs from where it lies.
        held = {name for name, b in backends.items() if b.holds}
        self._parts = [
            Part(
                tuple(c for n in s.nodes for c in received.get(n, ()) if s.backend in held),
                backends[s.backend].lower(s.nodes, views[s.backend], n_threads),
            )
            for s in plan.segments
        ]
        self._plan = plan

    @cached_property
    def rows(self) -> PlanRows:
        found: list[PlanRow] = []
        for s, part in zip(self._plan.segments, self._parts, strict=True):
            steps = step_rows(self._plan, s.backend, s.nodes, part.program.kernels)
            found += part.program.rows(steps)
        return tuple(found)

    @property
    def programs(self) -> Sequence[Program]:
        return [part.program for part in self._parts]

    def token_loop(
        self, tensors: Mapping[str, Tensor], brought: Sequence[BoundCopy]
    ) -> TokenLoop | None:
        if len(self._parts) != 1 or brought:
            return None
        return self._parts[0].program.token_loop(tensors)

    def round_loop(
        self,
        tensors: Mapping[str, Tensor],
        brought: Sequence[BoundCopy],
        keep: RoundMemory,
        drafts: Sequence[DraftStep],
    ) -> RoundLoop | None:
        if len(self._parts) != 1 or brought:
            return None
        return self._parts[0].program.round_loop(tensors, keep, drafts)

    def run(self, live: Live | None = None) -> None:
        for i in range(len(self._parts)):
            self.run_part(i, live, False)

    def run_part(
        self, i: int, live: Live | None, timed: bool, brought: bool = False
    ) -> Ticks | None:
        """Run one program of them, with what others made for it where it belongs. brought: it is
        there already."""
        part = self._parts[i]
        for c in () if brought else part.copies:
            c.run()
        part.program.start(timed, live)
        return part.program.finish()

    def run_timed(self, live: Live | None = None) -> np.ndarray:
        """Copies before a program count to its first step."""
        spans: list[np.ndarray] = []
        for i in range(len(self._parts)):
            ticks = self.run_part(i, live, True)
            assert ticks is not None
            found = spans_of(in_host_time(ticks, time.perf_counter_ns()))
            if spans:
                found[0, 0] = spans[-1][-1, 1]
            spans.append(found)
        return np.concatenate(spans)
