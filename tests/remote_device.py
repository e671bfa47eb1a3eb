"""A device made of numpy: memory that the host cannot reach, and programs that a thread runs."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gguflow.engine.backends.base import Memory
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.backends.link import FlagSignal, FlagWait, ProgramStep
from gguflow.engine.backends.numpy import NumpyBackend, NumpyExecutable, run_node
from gguflow.engine.graph import Tensor


class RemoteBuffer(HostBuffer):
    """Memory that says the host cannot reach it."""

    def host(self) -> Any:
        return None


class SharedBuffer(HostBuffer):
    """Memory with a copy on the host, brought over when something runs."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(np.zeros(nbytes, np.uint8))
        self.mirror = np.zeros(nbytes, np.uint8)

    def host(self) -> np.ndarray:
        return self.mirror

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        return self.mirror[offset : offset + nbytes]

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.mirror[offset : offset + raw.nbytes] = raw


class Inside:
    """The memory as code on the device sees it."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.shared: dict[int, SharedBuffer] = {}

    def locate(self, owner: Tensor) -> tuple[HostBuffer, int]:
        buffer, offset = self._memory.locate(owner)
        assert isinstance(buffer, RemoteBuffer | SharedBuffer), owner.name
        if isinstance(buffer, SharedBuffer):
            self.shared[id(buffer)] = buffer
        return HostBuffer(buffer.array), offset

    def is_packed(self, owner: Tensor) -> bool:
        return False


class RemoteBackend(NumpyBackend):
    """The references, on memory of their own."""

    name = "remote"
    space = "remote:0"

    def alloc(self, nbytes: int) -> HostBuffer:
        return RemoteBuffer(np.zeros(nbytes, np.uint8))

    def alloc_shared(self, nbytes: int) -> HostBuffer:
        return SharedBuffer(nbytes)

    def reserve(self, nbytes: int, scratch: int) -> None:
        """Nothing is gained by it here."""

    def load_weight(self, weight: Tensor, raw: np.ndarray, packed: bool) -> HostBuffer:
        return RemoteBuffer(raw.copy())

    def compile(self, nodes: Sequence[Tensor], memory: Memory, n_threads: int | None = None) -> Any:
        inside = Inside(memory)
        executable = super().compile(nodes, inside, n_threads)
        run = executable.run

        def run_with_transfers(ends_ns: np.ndarray | None = None) -> None:
            for b in inside.shared.values():
                b.array[:] = b.mirror
            run(ends_ns)
            for b in inside.shared.values():
                b.mirror[:] = b.array

        executable.run = run_with_transfers  # type: ignore[method-assign]
        return executable


class LinkableBackend(RemoteBackend):
    """The same with a thread that runs programs, as a device that the host is linked with.

    hook: called with every step before it runs; it may wait, raise, or say True to leave it out.
    """

    def __init__(self) -> None:
        self.hook: Callable[[ProgramStep], bool | None] = lambda step: None
        self.last: threading.Thread | None = None

    def alloc_pinned(self, nbytes: int) -> HostBuffer:
        return HostBuffer.zeros(nbytes)

    def compile_device_program(self, steps: Sequence[ProgramStep], memory: Memory) -> RemoteProgram:
        return RemoteProgram(self, steps, memory)


class RemoteProgram:
    """Steps in a thread. Its clock is not the host's."""

    skew_ns = 5_000_000_000

    def __init__(
        self, backend: LinkableBackend, steps: Sequence[ProgramStep], memory: Memory
    ) -> None:
        self.kernels = [s.op or "" if isinstance(s, Tensor) else type(s).__name__ for s in steps]
        self._backend = backend
        self._steps = steps
        self._inside = Inside(memory)
        nodes = [s for s in steps if isinstance(s, Tensor)]
        self._buffers = NumpyExecutable(nodes, self._inside)._buffers
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, timed: bool = False) -> None:
        assert self._thread is None
        self._ticks = [self._now()]
        self._thread = threading.Thread(target=self._work, args=(self._backend.last,))
        self._backend.last = self._thread
        self._thread.start()

    def finish(self) -> np.ndarray | None:
        if self._thread is not None:
            self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error
        return np.array(self._ticks, np.int64)

    def _now(self) -> int:
        return time.perf_counter_ns() + self.skew_ns

    def _work(self, before: threading.Thread | None) -> None:
        if before is not None:  # programs run in the order in which they were started
            before.join()
        try:
            for b in self._inside.shared.values():
                b.array[:] = b.mirror
            for step in self._steps:
                if not self._backend.hook(step):
                    self._run(step)
                self._ticks.append(self._now())
            for b in self._inside.shared.values():
                b.mirror[:] = b.array
        except BaseException as e:
            self._error = e

    def _run(self, step: ProgramStep) -> None:
        if isinstance(step, Tensor):
            return run_node(step, self._buffers)
        flag = ctypes.c_uint32.from_address(step.flag)
        if isinstance(step, FlagWait):
            given_up = ctypes.c_uint32.from_address(step.given_up)
            until = time.monotonic_ns() + step.timeout_ns
            while flag.value == 0 and given_up.value == 0:
                time.sleep(0)
                if time.monotonic_ns() > until:
                    given_up.value = step.code
            flag.value = 0
        for t in step.transfers:
            ctypes.memmove(t.target, t.source, t.nbytes)
        if isinstance(step, FlagSignal):
            assert flag.value == 0, "a flag was not taken back"
            flag.value = 1
