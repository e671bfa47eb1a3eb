"""How a schedule runs: what its two forms, in turns and side by side, have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from gguflow.engine.backends.base import (
    DraftStep,
    Live,
    Program,
    RoundLoop,
    RoundMemory,
    Ticks,
    TokenLoop,
)
from gguflow.engine.compile import Plan, Recv, Send, Step
from gguflow.engine.graph import Tensor
from gguflow.engine.profile import PlanRow, PlanRows

from .places import BoundCopy


class Runner(ABC):
    """A schedule with addresses."""

    @property
    @abstractmethod
    def rows(self) -> PlanRows:
        """What a profile knows of its steps, program by program."""

    @property
    @abstractmethod
    def programs(self) -> Sequence[Program]:
        """All there are, in the order of `rows`."""

    def token_loop(
        self, tensors: Mapping[str, Tensor], brought: Sequence[BoundCopy]
    ) -> TokenLoop | None:
        """Steps of which each makes its tokens the next one's input; None where that needs the
        host. tensors: the plan's inputs by name, and the sampled tokens as `token`."""
        return None

    def round_loop(
        self,
        tensors: Mapping[str, Tensor],
        brought: Sequence[BoundCopy],
        keep: RoundMemory,
        drafts: Sequence[DraftStep],
    ) -> RoundLoop | None:
        """The same of steps that check guesses, see `Program.round_loop`."""
        return None

    @abstractmethod
    def run(self, live: Live | None = None) -> None:
        """Run once, to the end."""

    def begin(self, live: Live | None = None, timed: bool = False) -> None:
        """Start a run, which ends with `end`. Others of other plans may begin before it does, and
        end after it. timed: with clocks, for who asks their programs. Here it runs to the end."""
        self.run(live)

    def end(self) -> None:
        """Wait for a run that has begun; raises what `run` would."""
        return None

    def prepare(self) -> None:
        """Do what a first `begin` may not do while another plan's run is under way."""
        return None

    @abstractmethod
    def run_timed(self, live: Live | None = None) -> np.ndarray:
        """The same with clocks: int64 [n_rows, 2], start and end of every row in host time."""


def spans_of(ns: np.ndarray) -> np.ndarray:
    """Readings [n + 1] as starts and ends [n, 2]."""
    return np.stack([ns[:-1], ns[1:]], axis=1)


def in_host_time(ticks: Ticks, now_ns: int) -> np.ndarray:
    """Readings of a program that has just ended, at `now_ns`. A device's last one is taken to be
    the moment the host learns of the end."""
    return ticks.ns if ticks.of_host else ticks.ns - ticks.ns[-1] + now_ns


def step_rows(
    plan: Plan, backend: str, steps: Sequence[Step], kernels: Sequence[str]
) -> list[PlanRow]:
    """A program's rows in a profile. A send or receive belongs to the segment of its node."""
    segment_of = {n: k for k, s in enumerate(plan.segments) for n in s.nodes}
    rows: list[PlanRow] = []
    used: dict[int, int] = {}
    for step, kernel in zip(steps, kernels, strict=True):
        node = _node_of(step)
        segment = segment_of[node]
        index = used[segment] = used.get(segment, -1) + 1
        if isinstance(step, Tensor):
            row = PlanRow.of(step, backend=backend, kernel=kernel, segment=segment, index=index)
        else:
            assert isinstance(step, Send | Recv)
            kind = "signal" if isinstance(step, Send) else "wait"
            owners = step.meeting.values
            row = PlanRow(
                name=f"{node.name}.{kind}", op=kind, backend=backend, kernel=kernel,
                shapes=tuple(o.shape for o in owners), types=tuple(o.dtype.name for o in owners),
                bytes=0, flops=0, segment=segment, index=index,
            )  # fmt: skip
        rows.append(row)
    return rows


def _node_of(step: Step) -> Tensor:
    if isinstance(step, Tensor):
        return step
    if isinstance(step, Send):
        return step.meeting.after
    assert isinstance(step, Recv)
    return step.meeting.before
