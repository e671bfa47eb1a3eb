"""A stage of a model that another process holds, as a device of this one.

`stage:1` has the layers that come second (`Options.devices`, split by layers). It takes no memory
here: its weights and caches are in the process that holds it, which has made the same plan of the
same file. What a run of its part reads of other stages goes there, what others read of it comes
back, and nothing else: a vector a token, and the tokens chosen.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from gguflow.engine.backends.base import (
    Backend,
    DeviceId,
    Links,
    Live,
    Meets,
    Memory,
    Program,
    Ticks,
)
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.compile import Step
from gguflow.engine.compile.types import HOST_SPACE
from gguflow.engine.graph import Role, Tensor
from gguflow.engine.profile import PlanRow
from gguflow.engine.runtime.places import BoundMemory, SpaceMemory, host_array

from .calls import Calls
from .crossing import Crossing, CrossingMemory, can_cross, crossing_links
from .part import KIND, Part, part_of
from .remote import Elsewhere, RemoteProgram, StageBuffer, cache_of
from .side import SideProgram
from .staging import Staging


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
        self.crossing: Crossing | None = None  # in a process that holds another stage: for a plan
        self._card: str | None = None  # of its process, if that has memory in common with this one
        self._has_asked = False

    @property
    def links(self) -> Links | None:  # type: ignore[override]
        """Where stages can run at the same time, once the process that holds this one is there."""
        if self.calls is not None and not self._has_asked:
            self._card, self._has_asked = self._card_in_reach(self.calls), True
        if self._card is not None or self.crossing is not None:
            return crossing_links(self._like, self.crossing, self._card or "")
        return None

    def _card_in_reach(self, calls: Calls) -> str | None:
        if not can_cross(self._like):
            return None
        try:
            trial = crossing_links(self._like, None).alloc_pinned
            assert trial is not None
            memory = trial(1)
        except OSError:
            return None
        assert isinstance(memory, CrossingMemory)
        return calls.meets(memory.name)

    def opens(self, name: Crossing) -> str | None:
        """The card of this process's device; None where it does not reach another's memory."""
        alloc = crossing_links(self._like, name).alloc_pinned if can_cross(self._like) else None
        try:
            if alloc is None or alloc(name.nbytes) is None or self._like.links is None:
                return None
        except (OSError, ValueError):
            return None
        return self._like.links.card

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
        """The part of the plan that begins with the first of the steps; with meets, all of them."""
        assert isinstance(memory, SpaceMemory)
        if meets is not None:
            if self.calls is None:
                return Elsewhere(len(steps))
            return SideProgram(self.calls, self.name, memory.memory, meets)
        assert isinstance(steps[0], Tensor)
        part = part_of(memory.memory.plan, steps[0])
        if self.calls is None:
            return Elsewhere(len(part.nodes))
        return StageProgram(self.calls, part, memory.memory, self.staging)


class StageProgram(RemoteProgram):
    """A part of a plan, run by a call. In a profile it has two rows more: the way there and the way
    back."""

    def __init__(self, calls: Calls, part: Part, memory: BoundMemory, staging: Staging) -> None:
        super().__init__(calls, part, memory, cache_of(calls, part, memory))
        self.kernels = calls.open(self._cache, part.plan, part.fingerprint)
        self._staging = staging
        self._live: Live | None = None
        self._ticks: np.ndarray | None = None

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
        self._take(found)
        if ns is not None:
            ended = time.perf_counter_ns()
            # The other process has a clock of its own: its run stands in the middle of the call.
            lead = (ended - began - int(ns[-1] - ns[0])) // 2
            inside = ns - ns[0] + began + lead
            self._ticks = np.array([began, *inside, ended], np.int64)

    def finish(self) -> Ticks | None:
        ticks, self._ticks = self._ticks, None
        return None if ticks is None else Ticks(ticks, True)

    def _cut(self, t: Tensor, array: np.ndarray) -> np.ndarray:
        """The rows of a value that count; all of an input's, which says itself which do."""
        rows = self._memory.rows.get(t)
        if rows is None or self._live is None or rows not in self._live or t.role is Role.INPUT:
            return array
        return array[: self._live[rows]]
