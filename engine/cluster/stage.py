"""A stage of a model that another process holds, as a device of this one.

`stage:1` has the layers that come second (`Options.devices`, split by layers). It takes no memory
here: its weights and caches are in the process that holds it, which has made the same plan of the
same file. What a run of its part reads of other stages goes there, what others read of it comes
back, and nothing else: a vector a token, and the tokens chosen.
"""

from __future__ import annotations

import mmap
import time
import weakref
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Protocol

import numpy as np

from gguflow.engine.backends.base import Backend, DeviceId, Live, Meets, Memory, Program, Ticks
from gguflow.engine.backends.host import PRIVATE, HostBuffer
from gguflow.engine.compile import Step
from gguflow.engine.compile.types import HOST_SPACE
from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import Role, Tensor
from gguflow.engine.profile import PlanRow
from gguflow.engine.runtime.places import BoundMemory, SpaceMemory, host_array

from .part import KIND, Part, PlanId, part_of
from .staging import Staging

_CACHES = count(1)
Values = dict[str, np.ndarray]


class Calls(Protocol):
    """What is asked of the process that holds a stage. cache: a number for each set of states."""

    def open(self, cache: int, plan: PlanId, fingerprint: str) -> tuple[str, ...]:
        """Make a plan ready; what runs each op of the part. Raises ClusterError where its plan is
        another one."""

    def run(
        self, cache: int, plan: PlanId, live: Live | None, values: Values, timed: bool
    ) -> tuple[Values, np.ndarray | None]:
        """Run the part: what others read of it, and clock readings [n_ops + 1] of a timed run."""

    def fetch(self, cache: int, plan: PlanId, name: str, at: int, nbytes: int) -> np.ndarray:
        """Bytes of a value of the last run."""

    def read(self, cache: int, name: str, at: int, nbytes: int) -> np.ndarray:
        """Bytes of a state."""

    def write(self, cache: int, name: str, at: int, data: np.ndarray) -> None:
        """Overwrite bytes of a state."""

    def drop(self, cache: int) -> None:
        """Nobody needs these states any more."""


@dataclass(frozen=True)
class _State:
    """Where a buffer's bytes really are."""

    calls: Calls
    cache: int
    name: str


class StageBuffer:
    """Memory of a stage: bytes that crossed are here, states and other values with the stage.

    Pages are taken from this machine only where something is written.
    """

    address = 0

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        flags = dict(PRIVATE)
        if flags:
            flags["flags"] |= getattr(mmap, "MAP_NORESERVE", 0)
        self._here = np.frombuffer(mmap.mmap(-1, max(nbytes, 1), **flags), np.uint8)[:nbytes]
        self.state: _State | None = None
        self.last: StageProgram | None = None  # that ran in this memory

    def host(self) -> np.ndarray | None:
        return None

    def read(self, offset: int, nbytes: int, into: np.ndarray | None = None) -> np.ndarray:
        if (s := self.state) is not None:
            return s.calls.read(s.cache, s.name, offset, nbytes)
        if self.last is not None:
            there = self.last.fetch(self, offset, nbytes)
            if there is not None:
                return there
        return self._here[offset : offset + nbytes]

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if (s := self.state) is not None:
            return s.calls.write(s.cache, s.name, offset, raw)
        self._here[offset : offset + raw.nbytes] = raw

    def move(self, to: int, source: int, nbytes: int) -> None:
        self.write(to, self.read(source, nbytes))


class StageBackend(Backend):
    """index: which stage. like: the device that holds it, as this process has one: all stages run
    on one kind. calls: None in a process that holds another stage and does not run this one."""

    holds = False

    def __init__(self, index: int, like: Backend, calls: Calls | None = None) -> None:
        self.id = DeviceId(KIND, index)
        self.name = self.space = str(self.id)
        self.processor, self._like, self.calls = like.processor, like, calls
        self.staging = Staging(like)
        self.on_host = like.space == HOST_SPACE

    def describe(self) -> str:
        return "layers that another process holds"

    def supports(self, node: Tensor) -> bool:
        return self._like.supports(node)

    def peaks(self) -> tuple[float, ...] | None:
        return None

    def alloc(self, nbytes: int) -> StageBuffer:
        return StageBuffer(nbytes)

    def alloc_shared(self, nbytes: int) -> HostBuffer:
        return HostBuffer.zeros(nbytes)

    def packed_bytes(self, weight: Tensor, users: Sequence[Tensor]) -> int:
        return 0

    def load_weight(self, weight: Tensor, raw: np.ndarray, packed: bool) -> HostBuffer:
        raise NotImplementedError(f"{weight.name} is another process's")

    def lower(
        self,
        steps: Sequence[Step],
        memory: Memory,
        n_threads: int | None = None,
        meets: Meets | None = None,
    ) -> Program:
        """The part of the plan that begins with the first of the steps."""
        assert isinstance(memory, SpaceMemory) and isinstance(steps[0], Tensor)
        part = part_of(memory.memory.plan, steps[0])
        if self.calls is None:
            return Elsewhere(part)
        return StageProgram(self.calls, part, memory.memory, self.staging)


class Elsewhere(Program):
    """A part that another process runs, in one that has no say in it."""

    def __init__(self, part: Part) -> None:
        self.kernels = [""] * len(part.nodes)

    def start(self, timed: bool = False, live: Live | None = None) -> None:
        raise NotImplementedError("this part runs elsewhere")

    def finish(self) -> Ticks | None:
        raise NotImplementedError("this part runs elsewhere")


class StageProgram(Program):
    """A part of a plan, run by a call. In a profile it has two rows more: the way there and the way
    back."""

    def __init__(self, calls: Calls, part: Part, memory: BoundMemory, staging: Staging) -> None:
        self._calls, self._part, self._memory, self._staging = calls, part, memory, staging
        self._cache = _cache_of(calls, part, memory)
        self.kernels = calls.open(self._cache, part.plan, part.fingerprint)
        self._live: Live | None = None
        self._ticks: np.ndarray | None = None
        self._places = _own_places(part, memory)

    def rows(self, rows: Sequence[PlanRow]) -> list[PlanRow]:
        ways = (("there", self._part.takes), ("back", self._part.gives))
        there, back = (
            PlanRow(
                name=f"{self._part.backend}.{way}", op="wire", backend=self._part.backend,
                kernel="call", shapes=tuple(t.shape for t in tensors),
                types=tuple(t.dtype.name for t in tensors), bytes=sum(t.nbytes for t in tensors),
                flops=0, segment=self._part.index,
            )
            for way, tensors in ways
        )  # fmt: skip
        return [there, *rows, back]

    def start(self, timed: bool = False, live: Live | None = None) -> None:
        began = time.perf_counter_ns()
        self._live = live
        takes = self._part.takes
        rooms = self._staging.rooms([t.stored_bytes for t in takes])
        values = {t.name: self._cut(t, host_array(self._memory, t, room))
                  for t, room in zip(takes, rooms, strict=True)}  # fmt: skip
        found, ns = self._calls.run(self._cache, self._part.plan, live, values, timed)
        for t in self._part.gives:
            data = found[t.name]
            buffer, offset = self._memory.locate(t)
            if (mirror := buffer.host()) is not None:
                mirror[offset : offset + data.nbytes] = data.reshape(-1).view(np.uint8)
            else:
                buffer.write(offset, data)
        for buffer in self._places:
            buffer.last = self
        if ns is not None:
            ended = time.perf_counter_ns()
            # The other process has a clock of its own: its run stands in the middle of the call.
            lead = (ended - began - int(ns[-1] - ns[0])) // 2
            inside = ns - ns[0] + began + lead
            self._ticks = np.array([began, *inside, ended], np.int64)

    def finish(self) -> Ticks | None:
        ticks, self._ticks = self._ticks, None
        return None if ticks is None else Ticks(ticks, True)

    def fetch(self, buffer: StageBuffer, offset: int, nbytes: int) -> np.ndarray | None:
        """Bytes of a value that no other stage reads; None for those that are here."""
        for first, t in self._places.get(buffer, ()):
            if first <= offset < first + t.nbytes:
                return self._calls.fetch(
                    self._cache, self._part.plan, t.name, offset - first, nbytes
                )
        return None

    def _cut(self, t: Tensor, array: np.ndarray) -> np.ndarray:
        """The rows of a value that count; all of an input's, which says itself which do."""
        rows = self._memory.rows.get(t)
        if rows is None or self._live is None or rows not in self._live or t.role is Role.INPUT:
            return array
        return array[: self._live[rows]]


def _cache_of(calls: Calls, part: Part, memory: BoundMemory) -> int:
    """The number of the states that a plan is bound to; 0 for none."""
    cache = 0
    for t in part.states:
        buffer: Any = memory.states[t.name]
        if buffer.state is None:
            if not cache:
                cache = next(_CACHES)
                # The first one stands for them all: they come and go together.
                weakref.finalize(buffer, _drop, calls, cache)
            buffer.state = _State(calls, cache, t.name)
        cache = cache or buffer.state.cache
    return cache


def _drop(calls: Calls, cache: int) -> None:
    calls.drop(cache)


def _own_places(
    part: Part, memory: BoundMemory
) -> Mapping[StageBuffer, list[tuple[int, Tensor]]]:  # fmt: skip
    """Outputs that stay with the stage until somebody looks at them, by buffer."""
    found: dict[StageBuffer, list[tuple[int, Tensor]]] = {}
    for t in part.keeps:
        buffer, offset = memory.locate(t)
        assert isinstance(buffer, StageBuffer) and t.role is Role.NODE
        found.setdefault(buffer, []).append((offset, t))
    return found
