"""Side by side: a schedule over the host and a device as two programs that meet in the middle.

The two get flags, addresses and a clock in common. The host's program runs on the calling thread
while the device's is under way; what crosses lies in pinned memory, which the device copies from
and to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from gguflow.engine.backends.base import (
    Backend,
    Flag,
    Live,
    Memory,
    Program,
    Ticks,
    Transfer,
)
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.compile import (
    Meeting,
    Plan,
    Recv,
    Send,
    Step,
    UnlinkableError,
    check_side_by_side,
)
from gguflow.engine.graph import Tensor

from .program import Runner, spans_of, step_rows

LINE = 64  # bytes a flag has for itself
GIVEN_UP = 0  # the line of the word that ends all waits; meeting i has line i + 1
ABANDONED = 0xFFFF_FFFF  # in that word: the host has left
LEAST_MEETINGS = 3  # fewer are cheaper than a device that waits busily
PATIENCE_S = 10.0  # what any wait is given, beside the time the work takes on a very slow machine
SLOW_FLOPS = 5e9


# A device's programs run one after the other, and so do a host's. Two plans started by two threads
# would wait for each other if the orders differed: each takes both for itself.
_turns: WeakKeyDictionary[Backend, threading.Lock] = WeakKeyDictionary()


class LinkError(RuntimeError):
    """The host and the device did not meet: says which value did not come from where."""


@dataclass(frozen=True)
class Sides:
    """A schedule cut in two: the backends' names, their steps, and where they meet."""

    host: str
    device: str
    meetings: list[Meeting]
    steps: Mapping[str, list[Step]]

    @property
    def sent(self) -> list[Tensor]:
        """What the host makes for the device: it belongs in pinned memory."""
        return [o for m in self.meetings if m.source == self.host for o in m.owners]


def cut(plan: Plan, backends: Mapping[str, Backend]) -> Sides:
    """The two sides of a plan. Raises UnlinkableError with the reason when they cannot run side by
    side or it is not worth it."""
    meetings = check_side_by_side(plan.steps, plan.placement, plan.spaces)
    if len(meetings) < LEAST_MEETINGS:
        raise UnlinkableError(f"only {len(meetings)} meetings")
    names = sorted({s.backend for s in plan.segments})
    sides: dict[bool, list[str]] = {False: [], True: []}
    for name in names:
        links = backends[name].links
        if links is not None:
            sides[links.alloc_pinned is not None].append(name)
    if len(sides[False]) != 1 or len(sides[True]) != 1:
        raise UnlinkableError(f"{' and '.join(names)} cannot wait for each other")
    return Sides(sides[False][0], sides[True][0], meetings, {n: plan.program(n) for n in names})


def pinned(device: Backend, nbytes: int) -> HostBuffer:
    """Host memory that the device of a side reaches."""
    assert device.links is not None and device.links.alloc_pinned is not None
    return device.links.alloc_pinned(nbytes)


class SideBySide(Runner):
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
        self.sides = sides
        self._turn = _turns.setdefault(device, threading.Lock())
        self.flags = pinned(device, LINE * (len(sides.meetings) + 1))
        self._words = self.flags.array.view(np.uint32)[:: LINE // 4]
        # The device first: it may have to run something to have its kernels loaded.
        self.device = device.lower(
            sides.steps[sides.device], views[sides.device], n_threads,
            {m: self._flag(m, views) for m in sides.meetings},
        )  # fmt: skip
        self.host = host.lower(
            sides.steps[sides.host], views[sides.host], n_threads,
            {m: self._flag(m, None) for m in sides.meetings},
        )  # fmt: skip
        self.rows = (
            *step_rows(plan, sides.host, sides.steps[sides.host], self.host.kernels),
            *step_rows(plan, sides.device, sides.steps[sides.device], self.device.kernels),
        )

    @property
    def programs(self) -> Sequence[Program]:
        return [self.host, self.device]

    def _flag(self, m: Meeting, views: Mapping[str, Memory] | None) -> Flag:
        """A meeting with addresses. views: for the device, which does the copying."""
        at, given_up = (self.flags.address + LINE * line for line in (m.index + 1, GIVEN_UP))
        transfers = () if views is None else tuple(_transfer(o, m, views) for o in m.owners)
        return Flag(at, given_up, m.index + 1, int(1e9 * self._patience(m)), transfers)

    def run(self, live: Live | None = None) -> None:
        """Run both programs once. Raises LinkError when one of them waits in vain, and what the
        device raises; the next run starts afresh."""
        self._run(False, live)

    def run_timed(self, live: Live | None = None) -> np.ndarray:
        began = time.perf_counter_ns()
        host, device = self._run(True, live)
        over = time.perf_counter_ns()
        assert host is not None and device is not None
        meetings = self._meeting_times(host.ns, device.ns)
        offset = clock_offset(meetings, device.ns, began, over)
        return np.concatenate([spans_of(host.ns), spans_of(device.ns + offset)])

    def _run(self, timed: bool, live: Live | None) -> tuple[Ticks | None, Ticks | None]:
        with self._turn:
            return self._run_alone(timed, live)

    def _run_alone(self, timed: bool, live: Live | None) -> tuple[Ticks | None, Ticks | None]:
        try:
            self.device.start(timed, live)
            self.host.start(timed, live)
            of_host = self.host.finish()
        except BaseException:
            self._words[GIVEN_UP] = ABANDONED
            raise
        finally:
            try:
                of_device = self.device.finish()
            finally:
                code = int(self._words[GIVEN_UP])
                if code:
                    self._words[:] = 0
        if code:
            raise LinkError(self._complaint(code))
        return of_host, of_device

    def _complaint(self, code: int) -> str:
        m = self.sides.meetings[code - 1]
        return (
            f"{m.target} waited {self._patience(m):.3g} s for {m.after.name} from {m.source} to "
            f"compute {m.before.name}; the run was given up"
        )

    def _patience(self, m: Meeting) -> float:
        """Seconds until a wait is given up. The device's take longer: when the host waits for it in
        vain both of them wait, and the host is to say so."""
        return (PATIENCE_S + m.flops / SLOW_FLOPS) * (2 if m.target == self.sides.device else 1)

    def _meeting_times(self, host: np.ndarray, device: np.ndarray) -> list[tuple[bool, int, int]]:
        """(whether from device to host, host time, device time) of every meeting: the start of the
        send and the end of the receive."""
        at: dict[tuple[Meeting, bool], int] = {}
        for name, clock in ((self.sides.host, host), (self.sides.device, device)):
            for i, s in enumerate(self.sides.steps[name]):
                if isinstance(s, Send):
                    at[s.meeting, True] = int(clock[i])
                elif isinstance(s, Recv):
                    at[s.meeting, False] = int(clock[i + 1])
        found = []
        for m in self.sides.meetings:
            to_host = m.target == self.sides.host
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
    return Transfer(target.address + to, source.address + at, owner.nbytes)
