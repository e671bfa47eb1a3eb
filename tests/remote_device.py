"""A device made of numpy: memory that the host cannot reach, and programs that a thread runs."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gguflow.engine import model as model_module
from gguflow.engine.backends.base import (
    Backend,
    Links,
    Live,
    Meets,
    Memory,
    Program,
    Ticks,
    find_backend,
)
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.backends.numpy import NumpyBackend, buffers_of, run_node
from gguflow.engine.compile import Recv, Send, Step, with_gaps
from gguflow.engine.graph import Tensor


class RemoteBuffer(HostBuffer):
    """Memory that says the host cannot reach it."""

    def host(self) -> Any:
        return None

    def read(self, offset: int, nbytes: int, into: np.ndarray | None = None) -> np.ndarray:
        found = np.empty(nbytes, np.uint8) if into is None else into[:nbytes]
        found[:] = self.array[offset : offset + nbytes]
        return found


class SharedBuffer(HostBuffer):
    """Memory with a copy on the host, brought over when something runs."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(np.zeros(nbytes, np.uint8))
        self.mirror = np.zeros(nbytes, np.uint8)

    def host(self) -> np.ndarray:
        return self.mirror

    def read(self, offset: int, nbytes: int, into: np.ndarray | None = None) -> np.ndarray:
        return self.mirror[offset : offset + nbytes]

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.mirror[offset : offset + raw.nbytes] = raw


class Inside:
    """The memory as code on the device sees it."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.shared: dict[int, SharedBuffer] = {}
        self.rows = memory.rows

    def locate(self, owner: Tensor) -> tuple[HostBuffer, int]:
        buffer, offset = self._memory.locate(owner)
        assert isinstance(buffer, RemoteBuffer | SharedBuffer), owner.name
        if isinstance(buffer, SharedBuffer):
            self.shared[id(buffer)] = buffer
        return HostBuffer(buffer.array), offset

    def is_packed(self, owner: Tensor) -> bool:
        return False


class RemoteMemory:
    """What a device says of its memory."""

    unit = 64
    row_unit = 16
    free, total = 1 << 40, 1 << 40

    def room(self) -> tuple[int, int]:
        return self.free, self.total

    def scratch_bytes(self, nodes: Sequence[Tensor]) -> int:
        return 0

    def reserve(self, nbytes: int, scratch: int) -> None:
        """Nothing is gained by it here."""

    def trim(self) -> None:
        """Nothing is kept."""


class RemoteBackend(NumpyBackend):
    """The references, on memory of their own."""

    name = "remote"
    space = "remote:0"

    def __init__(self) -> None:
        self.memory = RemoteMemory()

    def alloc(self, nbytes: int) -> HostBuffer:
        return RemoteBuffer(np.zeros(nbytes, np.uint8))

    def alloc_shared(self, nbytes: int) -> HostBuffer:
        return SharedBuffer(nbytes)

    def load_weight(self, weight: Tensor, raw: np.ndarray, packed: bool) -> HostBuffer:
        return RemoteBuffer(with_gaps(weight, raw).copy())

    def lower(
        self,
        steps: Sequence[Step],
        memory: Memory,
        n_threads: int | None = None,
        meets: Meets | None = None,
    ) -> Program:
        return RemoteProgram(self, steps, memory, meets or Meets())

    def hook(self, step: Step) -> bool | None:
        """Called with every step before it runs."""
        return None


class LinkableBackend(RemoteBackend):
    """The same as a device that the host can run beside.

    hook: called with every step before it runs; it may wait, raise, or say True to leave it out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hook: Callable[[Step], bool | None] = lambda step: None  # type: ignore[method-assign]
        self.links = Links(HostBuffer.zeros)
        self.last: threading.Thread | None = None

    def lower(
        self,
        steps: Sequence[Step],
        memory: Memory,
        n_threads: int | None = None,
        meets: Meets | None = None,
    ) -> Program:
        return ThreadProgram(self, steps, memory, meets or Meets())


class RemoteProgram(Program):
    """Steps run when they are waited for. The clock is not the host's."""

    skew_ns = 5_000_000_000

    def __init__(
        self, backend: RemoteBackend, steps: Sequence[Step], memory: Memory, meets: Meets
    ) -> None:
        self.kernels = [s.op or "" if isinstance(s, Tensor) else type(s).__name__ for s in steps]
        self.steps = steps
        self._backend = backend
        self._flags = meets.flags
        self._inside = Inside(memory)
        nodes = [s for s in steps if isinstance(s, Tensor)]
        self._buffers = buffers_of(nodes, self._inside)
        self._is_timed = False

    def start(self, timed: bool = False, live: Live | None = None) -> None:
        self._is_timed = timed
        self._ticks = [self._now()]
        for b in self._inside.shared.values():
            b.array[:] = b.mirror
        for step in self.steps:
            if not self._backend.hook(step):
                self._run(step)
            self._ticks.append(self._now())
        for b in self._inside.shared.values():
            b.mirror[:] = b.array

    def finish(self) -> Ticks | None:
        return Ticks(np.array(self._ticks, np.int64), of_host=False) if self._is_timed else None

    def _now(self) -> int:
        return time.perf_counter_ns() + self.skew_ns

    def _run(self, step: Step) -> None:
        if isinstance(step, Tensor):
            return run_node(step, self._buffers)
        assert isinstance(step, Send | Recv)
        f = self._flags[step.meeting]
        flag = ctypes.c_uint32.from_address(f.address)
        if isinstance(step, Recv):
            given_up = ctypes.c_uint32.from_address(f.given_up)
            until = time.monotonic_ns() + f.timeout_ns
            while flag.value == 0 and given_up.value == 0:
                time.sleep(0)
                if time.monotonic_ns() > until:
                    given_up.value = f.code
            flag.value = 0
        for t in f.transfers:
            ctypes.memmove(t.target, t.source, t.nbytes)
        if isinstance(step, Send):
            assert flag.value == 0, "a flag was not taken back"
            flag.value = 1


class ThreadProgram(RemoteProgram):
    """Steps in a thread. Programs run in the order in which they were started."""

    _backend: LinkableBackend
    _thread: threading.Thread | None = None
    _error: BaseException | None = None

    def start(self, timed: bool = False, live: Live | None = None) -> None:
        assert self._thread is None
        self._thread = threading.Thread(target=self._work, args=(timed, self._backend.last))
        self._backend.last = self._thread
        self._thread.start()

    def finish(self) -> Ticks | None:
        if self._thread is not None:
            self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error
        return super().finish()

    def _work(self, timed: bool, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        try:
            super().start(timed)
        except BaseException as e:
            self._error = e


def take_place(monkeypatch: pytest.MonkeyPatch, device: Backend, name: str = "cuda") -> None:
    """Models find this device by a name."""

    def find(wanted: str, options: Any = None) -> Backend:
        return device if wanted == name else find_backend(wanted, options)

    monkeypatch.setattr(model_module, "find_backend", find)
