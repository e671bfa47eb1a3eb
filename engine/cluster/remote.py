"""What a process has of a stage that another one holds: its memory and its programs, without what
is in them."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np

from gguflow.engine.backends.base import Live, Program, Ticks
from gguflow.engine.backends.host import PRIVATE
from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import Role, Tensor
from gguflow.engine.runtime.places import BoundMemory

from .calls import Calls, Values
from .part import Part

_CACHES = count(1)


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
        self.last: RemoteProgram | None = None  # that ran in this memory

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


class RemoteProgram(Program):
    """A part of a plan that another process runs when it is asked to. cache: the states it has."""

    def __init__(self, calls: Calls, part: Part, memory: BoundMemory, cache: int) -> None:
        self._calls, self._part, self._memory, self._cache = calls, part, memory, cache
        self._places = _own_places(part, memory)

    def _take(self, found: Values) -> None:
        """Put what a run gave where others look for it."""
        for t in self._part.gives:
            data = found[t.name]
            buffer, offset = self._memory.locate(t)
            if (mirror := buffer.host()) is not None:
                mirror[offset : offset + data.nbytes] = data.reshape(-1).view(np.uint8)
            else:
                buffer.write(offset, data)
        for buffer in self._places:
            buffer.last = self

    def fetch(self, buffer: StageBuffer, offset: int, nbytes: int) -> np.ndarray | None:
        """Bytes of a value that no other stage reads; None for those that are here."""
        for first, t in self._places.get(buffer, ()):
            if first <= offset < first + t.nbytes:
                return self._calls.fetch(
                    self._cache, self._part.plan, t.name, offset - first, nbytes
                )
        return None


class Elsewhere(Program):
    """Steps that another process runs, in one that has no say in it."""

    def __init__(self, n_steps: int) -> None:
        self.kernels = [""] * n_steps

    def start(self, timed: bool = False, live: Live | None = None) -> None:
        """Who runs the model starts it."""

    def finish(self) -> Ticks | None:
        return None


def cache_of(calls: Calls, part: Part, memory: BoundMemory) -> int:
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
