"""Linked runs: a plan over the host and a device as one launch there and one call here.

`engine.compile.link` cuts the plan into the two programs; here they get flags, addresses and a
clock in common. The host's program runs on the calling thread while the device's is under way;
what crosses lies in pinned memory, which the device copies from and to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gguflow.engine.backends.base import Backend, Memory
from gguflow.engine.backends.link import (
    FlagSignal,
    FlagWait,
    LinkDevice,
    LinkHost,
    ProgramStep,
    Transfer,
)
from gguflow.engine.compile import Link, Meeting, Plan, Signal, UnlinkableError, Wait, link
from gguflow.engine.compile.link import Step
from gguflow.engine.graph import Tensor
from gguflow.engine.profile import PlanRow, PlanRows

LINE = 64  # bytes a flag has for itself
GIVEN_UP = 0  # the line of the word that ends all waits; meeting i has line i + 1
ABANDONED = 0xFFFF_FFFF  # in that word: the host has left
LEAST_MEETINGS = 3  # fewer are cheaper than a device that waits busily
PATIENCE_S = 10.0  # what any wait is given, beside the time the work takes on a very slow machine
SLOW_FLOPS = 5e9


# A device's programs run one after the other, and so do a host's. Two plans started by two threads
# would wait for each other if the orders differed: each takes both for itself.
_turns: WeakKeyDictionary[LinkDevice, threading.Lock] = WeakKeyDictionary()


class LinkError(RuntimeError):
    """The host and the device did not meet: says which value did not come from where."""


@dataclass(frozen=True)
class Sides:
    """A plan cut in two, and the names of the backends that run the parts."""

    link: Link
    host: str
    device: str

    @property
    def sent(self) -> list[Tensor]:
        """What the host makes for the device: it belongs in pinned memory."""
        return [o for m in self.link.meetings if m.source == self.host for o in m.owners]


def cut(plan: Plan, backends: Mapping[str, Backend]) -> Sides:
    """The two sides of a plan. Raises UnlinkableError with the reason when it cannot be linked or
    is not worth it."""
    found = link(plan.segments, plan.placement, plan.spaces)
    if len(found.meetings) < LEAST_MEETINGS:
        raise UnlinkableError(f"only {len(found.meetings)} meetings")
    names = sorted(found.programs)
    host = [b for b in names if isinstance(backends[b], LinkHost)]
    device = [b for b in names if isinstance(backends[b], LinkDevice)]
    if len(host) != 1 or len(device) != 1:
        raise UnlinkableError(f"{' and '.join(names)} cannot wait for each other")
    return Sides(found, host[0], device[0])


class LinkedPlan:
    """Ready to run. views: the plan's memory as each backend sees it, by name."""

    def __init__(
        self,
        plan: Plan,
        sides: Sides,
        backends: Mapping[str, Backend],
        views: Mapping[str, Memory],
        n_threads: int | None = None,
    ) -> None:
        host, device = backends[sides.host], backends[sides.device]
        assert isinstance(host, LinkHost) and isinstance(device, LinkDevice)
        self._sides = sides
        self._turn = _turns.setdefault(device, threading.Lock())
        meetings = sides.link.meetings
        self._flags = device.alloc_pinned(LINE * (len(meetings) + 1))
        self._words = self._flags.array.view(np.uint32)[:: LINE // 4]
        self._host_steps = sides.link.programs[sides.host]
        self._device_steps = sides.link.programs[sides.device]
        self._host = host.compile_host_program(
            [self._lowered(s) for s in self._host_steps], views[sides.host], n_threads
        )
        self._device = device.compile_device_program(
            [self._lowered(s, views) for s in self._device_steps], views[sides.device]
        )
        self.rows: PlanRows = (
            *_rows(plan, sides.host, self._host_steps, self._host.kernels),
            *_rows(plan, sides.device, self._device_steps, self._device.kernels),
        )

    def _lowered(self, step: Step, views: Mapping[str, Memory] | None = None) -> ProgramStep:
        """A step with addresses. views: for the device, which does the copying."""
        if isinstance(step, Tensor):
            return step
        m = step.meeting
        flag = self._flags.address + LINE * (m.index + 1)
        transfers = () if views is None else tuple(_transfer(o, m, views) for o in m.owners)
        if isinstance(step, Signal):
            return FlagSignal(flag, transfers)
        given_up = self._flags.address + LINE * GIVEN_UP
        return FlagWait(flag, given_up, m.index + 1, int(1e9 * self._patience(m)), transfers)

    def run(self) -> None:
        """Run both programs once. Raises LinkError when one of them waits in vain, and what the
        device raises; the next run starts afresh."""
        self._run(None)

    def run_timed(self) -> np.ndarray:
        """The same with clocks: int64 [n_rows, 2], start and end of every row in host time."""
        ends = np.zeros(len(self._host_steps) + 1, np.int64)
        began = time.perf_counter_ns()
        ticks = self._run(ends)
        over = time.perf_counter_ns()
        assert ticks is not None
        ticks = ticks + clock_offset(self._meeting_times(ends, ticks), ticks, began, over)
        spans = [np.stack([t[:-1], t[1:]], axis=1) for t in (ends, ticks)]
        return np.concatenate(spans)

    def _run(self, ends_ns: np.ndarray | None) -> np.ndarray | None:
        with self._turn:
            return self._run_alone(ends_ns)

    def _run_alone(self, ends_ns: np.ndarray | None) -> np.ndarray | None:
        try:
            self._device.start(timed=ends_ns is not None)
            self._host.run(ends_ns)
        except BaseException:
            self._words[GIVEN_UP] = ABANDONED
            raise
        finally:
            try:
                ticks = self._device.finish()
            finally:
                code = int(self._words[GIVEN_UP])
                if code:
                    self._words[:] = 0
        if code:
            raise LinkError(self._complaint(code))
        return ticks

    def _complaint(self, code: int) -> str:
        m = self._sides.link.meetings[code - 1]
        return (
            f"{m.target} waited {self._patience(m):.3g} s for {m.after.name} from {m.source} to "
            f"compute {m.before.name}; the run was given up"
        )

    def _patience(self, m: Meeting) -> float:
        """Seconds until a wait is given up. The device's take longer: when the host waits for it in
        vain both of them wait, and the host is to say so."""
        return (PATIENCE_S + m.flops / SLOW_FLOPS) * (2 if m.target == self._sides.device else 1)

    def _meeting_times(self, ends: np.ndarray, ticks: np.ndarray) -> list[tuple[bool, int, int]]:
        """(whether from device to host, host time, device time) of every meeting: the start of the
        signal and the end of the wait."""
        at: dict[tuple[Meeting, bool], int] = {}
        for steps, clock in ((self._host_steps, ends), (self._device_steps, ticks)):
            for i, s in enumerate(steps):
                if isinstance(s, Signal):
                    at[s.meeting, True] = int(clock[i])
                elif isinstance(s, Wait):
                    at[s.meeting, False] = int(clock[i + 1])
        found = []
        for m in self._sides.link.meetings:
            to_host = m.target == self._sides.host
            sent, got = at[m, True], at[m, False]
            found.append((True, got, sent) if to_host else (False, sent, got))
        return found


def clock_offset(
    meetings: list[tuple[bool, int, int]], ticks: np.ndarray, began: int, over: int
) -> int:
    """Nanoseconds to add to the device's clock to have the host's.

    What is signalled arrives later, so each meeting bounds the offset from one side, and so do the
    start and the end of the run; the middle of what is left is off by half the time a signal takes.
    """
    least = [began - int(ticks[0])] + [h - d for to_host, h, d in meetings if not to_host]
    most = [over - int(ticks[-1])] + [h - d for to_host, h, d in meetings if to_host]
    return (max(least) + min(most)) // 2


def _transfer(owner: Tensor, m: Meeting, views: Mapping[str, Memory]) -> Transfer:
    (source, at), (target, to) = views[m.source].locate(owner), views[m.target].locate(owner)
    return Transfer(_address(target) + to, _address(source) + at, owner.nbytes)


def _address(buffer: Any) -> int:
    return int(buffer.address)  # which the buffers of both sides have


def _rows(plan: Plan, backend: str, steps: Sequence[Step], kernels: Sequence[str]) -> list[PlanRow]:
    """A program's rows in a profile. A signal or wait belongs to the segment of its node."""
    segment_of = {n: k for k, s in enumerate(plan.segments) for n in s.nodes}
    rows: list[PlanRow] = []
    used: dict[int, int] = {}
    for step, kernel in zip(steps, kernels, strict=True):
        if isinstance(step, Tensor):
            node = step
        else:
            node = step.meeting.after if isinstance(step, Signal) else step.meeting.before
        segment = segment_of[node]
        index = used[segment] = used.get(segment, -1) + 1
        if isinstance(step, Tensor):
            row = PlanRow.of(step, backend=backend, kernel=kernel, segment=segment, index=index)
        else:
            kind = "signal" if isinstance(step, Signal) else "wait"
            owners = step.meeting.owners
            row = PlanRow(
                name=f"{node.name}.{kind}", op=kind, backend=backend, kernel=kernel,
                shapes=tuple(o.shape for o in owners), types=tuple(o.dtype.name for o in owners),
                bytes=0, flops=0, segment=segment, index=index,
            )  # fmt: skip
        rows.append(row)
    return rows
