"""Side by side: a schedule over several devices, and the host, as programs that meet on the way.

They get flags, addresses and a clock in common. Devices' programs are under way while the host's
runs on the calling thread. What crosses between the host and a device lies in pinned memory, which
the device copies from and to; a device writes right into another's memory where it reaches it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from weakref import WeakKeyDictionary

import numpy as np

from gguflow.engine.backends.base import (
    Backend,
    Buffer,
    Flag,
    Live,
    Meets,
    Program,
    Reduce,
    Ticks,
    TokenLoop,
    Transfer,
)
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.compile import Meeting, Plan, Recv, Send, round_up
from gguflow.engine.graph import Tensor, op_spec
from gguflow.engine.profile import PlanRows

from .clocks import Signal, offsets, shifted
from .loops import LoopTogether
from .places import BoundCopy, SpaceMemory
from .program import Runner, spans_of, step_rows
from .sides import Sides, pinned
from .workspace import Workspace, clear

LINE = 64  # bytes a flag has for itself
GIVEN_UP = 0  # the line of the word that ends all waits; meeting i has line i + 1
ABANDONED = 0xFFFF_FFFF  # in that word: the host has left
PATIENCE_S = 10.0  # what any wait is given, beside the time the work takes on a very slow machine
SLOW_FLOPS = 5e9


# A device's programs run one after the other, and so do a host's. Two plans started by two threads
# would wait for each other if the orders differed: each takes all that it runs on for itself.
# One thread may have begun several.
_turns: WeakKeyDictionary[Backend, threading.RLock] = WeakKeyDictionary()


class LinkError(RuntimeError):
    """Programs did not meet: says which value did not come from where."""


class SideBySide(Runner):
    """Ready to run. views: the plan's memory as each backend sees it, by name."""

    def __init__(
        self,
        plan: Plan,
        sides: Sides,
        backends: Mapping[str, Backend],
        views: Mapping[str, SpaceMemory],
        workspace: Workspace,
        n_threads: int | None = None,
    ) -> None:
        self._plan, self.sides = plan, sides
        self._placement = plan.placement
        self._views = views
        self._locks = [_turns.setdefault(backends[n], threading.RLock()) for n in sides.devices]
        self._ticks: dict[str, Ticks | None] = {}  # of the run that has begun
        # Memory that all of them reach: where some are another process's, what both processes have.
        common = min((backends[n] for n in sides.devices), key=lambda b: b.holds)
        sizes = {m: sum(round_up(o.nbytes) for o in m.owners)
                 for m in sides.meetings if self._is_staged(m)}  # fmt: skip
        n_flags = LINE * (len(sides.meetings) + 1)
        self._common = pinned(common, n_flags + sum(sizes.values()))
        self.flags = HostBuffer(self._common.array[:n_flags])
        self._words = self.flags.array.view(np.uint32)[:: LINE // 4]
        self._own_flags = {n: self._alloc_flags(n, backends[n]) for n in sides.devices}
        ends = accumulate(sizes.values(), initial=self._common.address + n_flags)
        self._staging = dict(zip(sizes, ends, strict=False))  # addresses
        self._workspace, self._exchanged = workspace, workspace.exchanged
        self._channels = workspace.channels(sides, plan, backends)
        # Devices first: they may have to run something to have their kernels loaded.
        self._programs = {
            name: backends[name].lower(sides.steps[name], views[name], n_threads, self._meets(name))
            for name in sides.names
        }
        order = sides.names if sides.host is None else (sides.host, *sides.devices)
        self._order = order  # of rows and of what is shown

    @cached_property
    def rows(self) -> PlanRows:
        return tuple(
            row
            for name in self._order
            for row in step_rows(
                self._plan, name, self.sides.steps[name], self._programs[name].kernels
            )
        )

    @property
    def programs(self) -> list[Program]:
        return [self._programs[name] for name in self._order]

    def program(self, name: str) -> Program:
        """The one of a backend."""
        return self._programs[name]

    # -- where they meet -------------------------------------------------------------------------

    def _is_staged(self, m: Meeting) -> bool:
        return self.sides.host not in (m.source, m.target) and not self.sides.is_direct(m)

    def _alloc_flags(self, name: str, device: Backend) -> Buffer | None:
        """Of what other devices write into its memory: it looks at them without the bus."""
        mine = [m for m in self.sides.meetings if m.target == name and self.sides.is_direct(m)]
        return device.alloc(LINE * (len(self.sides.meetings) + 1)) if mine else None

    def _meets(self, name: str) -> Meets:
        mine = [m for m in self.sides.meetings if name in (m.source, m.target)]
        flags = {m: self._flag(m, name) for m in mine}
        reduces: dict[Tensor, Reduce] = {}
        sizes, shares = self._exchanged
        for i, group in enumerate(self.sides.reductions):
            at = [self._placement.of[n] for n in group]
            if name in at:
                channels = tuple(self._channels[n].address for n in at)
                code = len(self.sides.meetings) + 1 + i
                reduces[group[at.index(name)]] = Reduce(
                    at.index(name), channels, sizes, shares, self._line(GIVEN_UP), code,
                    int(1e9 * self._reduce_patience),
                )  # fmt: skip
        own = (b for b in self._own_flags.values() if b is not None)
        written = (self._views[name].locate(t.owner)[0] for m in mine for t in m.written)
        memory = (self._common, *own, *self._channels.values(), *written)
        return Meets(flags, reduces, memory)

    def _line(self, i: int) -> int:
        return self.flags.address + LINE * i

    def _flag(self, m: Meeting, name: str) -> Flag:
        """A meeting with addresses, for one of the two."""
        own = self._own_flags.get(m.target) if self.sides.is_direct(m) else None
        at = self._line(m.index + 1) if own is None else own.address + LINE * (m.index + 1)
        return Flag(
            at, self._line(GIVEN_UP), m.index + 1, int(1e9 * self._patience(m)),
            self._transfers(m, name),
        )  # fmt: skip

    def _transfers(self, m: Meeting, name: str) -> tuple[Transfer, ...]:
        """What one of the two copies: a device, of what it meets the host with; the sender, into
        the memory of another device; both, to and from the host's memory between them."""
        if name == self.sides.host or (self.sides.is_direct(m) and name == m.target):
            return ()
        if m not in self._staging:
            return tuple(_transfer(self._address(o, m.source), self._address(o, m.target), o)
                         for o in m.owners)  # fmt: skip
        made, at = [], self._staging[m]
        for o in m.owners:
            mine = self._address(o, name)
            made.append(_transfer(mine, at, o) if name == m.source else _transfer(at, mine, o))
            at += round_up(o.nbytes)
        return tuple(made)

    def _address(self, owner: Tensor, name: str) -> int:
        buffer, offset = self._views[name].locate(owner)
        return buffer.address + offset

    # -- runs ------------------------------------------------------------------------------------

    def run(self, live: Live | None = None) -> None:
        """Run all programs once. Raises LinkError when one of them waits in vain, and what a device
        raises; the next run starts afresh."""
        self._begin(False, live)
        self._end()

    def begin(self, live: Live | None = None, timed: bool = False) -> None:
        """Start all programs; the host's runs to its end."""
        self._begin(timed, live)

    def end(self) -> None:
        self._end()

    def ticks(self, name: str) -> Ticks | None:
        """Of a backend's program, in the timed run that has ended."""
        return self._ticks.get(name)

    def prepare(self) -> None:
        for name in self.sides.devices:
            self._programs[name].prepare()

    def run_timed(self, live: Live | None = None) -> np.ndarray:
        began = time.perf_counter_ns()
        self._begin(True, live)
        ticks = self._end()
        over = time.perf_counter_ns()
        by = offsets(ticks, self._signals(ticks), began, over)
        return np.concatenate([spans_of(shifted(ticks[n], by[n])) for n in self._order])

    def token_loop(
        self, tensors: Mapping[str, Tensor], brought: Sequence[BoundCopy]
    ) -> TokenLoop | None:
        """Of devices that exchange something every step, so that none gets ahead of another."""
        sampled = [tensors[n] for n in ("token", "tokens", "sampler.rng", "sampler.history")]
        at = {self._placement.of[t.owner] for t in sampled}
        if self.sides.host is not None or not self.sides.reductions or len(at) > 1:
            return None
        loops: list[TokenLoop] = []
        for name in sorted(self.sides.devices, key=lambda n: n not in at):
            view = self._views[name]
            mine = {n: t for n, t in tensors.items() if view.holds(t.owner)}
            loop = self._programs[name].token_loop(mine)
            if loop is None:
                return None
            loops.append(loop)
        return LoopTogether(loops, brought, self._locks, self._check)

    def _check(self) -> None:
        """Raises LinkError for a step of a loop that was given up."""
        if code := int(self._words[GIVEN_UP]):
            for name in self.sides.devices:
                self._programs[name].finish()
            self._clear()
            raise LinkError(self._complaint(code))

    def _begin(self, timed: bool, live: Live | None) -> None:
        for lock in self._locks:  # in the order of names: no two plans take them crosswise
            lock.acquire()
        self._workspace.begin()
        host, devices = self.sides.host, self.sides.devices
        self._ticks = {}
        started: list[str] = []
        try:
            for name in devices:
                self._programs[name].prepare(timed)
            for name in devices:
                started.append(name)
                self._programs[name].start(timed, live)
            if host is not None:
                self._programs[host].start(timed, live)
                self._ticks[host] = self._programs[host].finish()
        except BaseException:
            self._words[GIVEN_UP] = ABANDONED
            try:
                self._finish(started)
            finally:
                self._release()
            raise

    def _end(self) -> dict[str, Ticks]:
        try:
            code = self._finish(self.sides.devices)
        finally:
            self._release()
        if code:
            raise LinkError(self._complaint(code))
        return {name: t for name, t in self._ticks.items() if t is not None}

    def _release(self) -> None:
        self._workspace.end()
        for lock in reversed(self._locks):
            lock.release()

    def _finish(self, started: Sequence[str]) -> int:
        """Wait for devices, all of them; why the run was given up, 0 if it was not. Raises the
        first thing that one of them raises."""
        failed: BaseException | None = None
        for name in started:
            try:
                self._ticks[name] = self._programs[name].finish()
            except BaseException as e:
                self._words[GIVEN_UP] = self._words[GIVEN_UP] or ABANDONED
                failed = failed or e
        code = int(self._words[GIVEN_UP])
        if code:
            self._clear()
        if failed is not None:
            raise failed
        return code

    def _clear(self) -> None:
        """As before the first run: what was sent is not to be taken for the next run's."""
        self._words[:] = 0
        clear([b for b in self._own_flags.values() if b is not None])
        self._workspace.spoil()

    def _complaint(self, code: int) -> str:
        if code > len(self.sides.meetings):
            i = code - len(self.sides.meetings) - 1
            node = self.sides.reductions[i][0]
            return (
                f"a device waited {self._reduce_patience:.3g} s for the others' parts of "
                f"{node.name}; the run was given up"
            )
        m = self.sides.meetings[code - 1]
        return (
            f"{m.target} waited {self._patience(m):.3g} s for {m.after.name} from {m.source} to "
            f"compute {m.before.name}; the run was given up"
        )

    def _patience(self, m: Meeting) -> float:
        """Seconds until a wait is given up. Devices' take longer: when the host waits in vain all
        of them wait, and the host is to say so."""
        return (PATIENCE_S + m.flops / SLOW_FLOPS) * (2 if m.target != self.sides.host else 1)

    @cached_property
    def _reduce_patience(self) -> float:
        """The same for an exchange: other devices have all the work of the run for it."""
        work = 0
        for steps in self.sides.steps.values():
            nodes = (s for s in steps if isinstance(s, Tensor))
            work = max(work, sum(op_spec(n.op).flops(n) for n in nodes if n.op))
        return 2 * (PATIENCE_S + work / SLOW_FLOPS)

    def _signals(self, ticks: Mapping[str, Ticks]) -> list[Signal]:
        """From the start of every send to the end of its receive; of an exchange, from the start of
        each one's to the end of the others'."""
        sent: dict[Meeting, int] = {}
        got: dict[Meeting, int] = {}
        spans: dict[Tensor, tuple[int, int]] = {}
        for name in self.sides.names:
            clock = ticks[name].ns
            for i, s in enumerate(self.sides.steps[name]):
                if isinstance(s, Send):
                    sent[s.meeting] = int(clock[i])
                elif isinstance(s, Recv):
                    got[s.meeting] = int(clock[i + 1])
                else:
                    spans[s] = int(clock[i]), int(clock[i + 1])
        found = [Signal(m.source, sent[m], m.target, got[m]) for m in self.sides.meetings]
        for group in self.sides.reductions:
            at = [(self._placement.of[n], *spans[n]) for n in group]
            found += [Signal(a, start, b, end) for a, start, _ in at for b, _, end in at if a != b]
        return found


def _transfer(source: int, target: int, owner: Tensor) -> Transfer:
    return Transfer(target, source, owner.nbytes)
