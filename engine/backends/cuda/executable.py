"""A segment on the GPU: launched op by op the first time, captured the second, replayed after."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gguflow.engine.backends.base import Memory
from gguflow.engine.graph import Role, Tensor
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.kernels.cuda.launch import Call, Launch, Operand, launches, scratch_bytes
from gguflow.kernels.cuda.mirror import mirror
from gguflow.kernels.cuda.timestamp import timestamp

from .cublas import BoundGemm
from .memory import CudaBuffer, MirroredBuffer
from .modules import BoundLaunch
from .token_loop import CudaTokenLoop

if TYPE_CHECKING:
    from .backend import CudaBackend

MIRROR_BYTES = 64 << 10  # larger inputs and outputs go by the copy engine


class CudaExecutable:
    """Ready to run. A run ends when the device has finished, so the host may read and write its
    copies of inputs and outputs at once.

    nodes: launches that belong to no node may stand among them.
    """

    def __init__(
        self, backend: CudaBackend, nodes: Sequence[Tensor | list[Launch]], memory: Memory
    ) -> None:
        self._backend = backend
        self._device = backend.device
        self.n_ops = len(nodes)
        info = self._device.info
        wanted = [scratch_bytes(n, info) if isinstance(n, Tensor) else 0 for n in nodes]
        self._scratch = backend.scratch(max(wanted, default=0))
        self._memory = memory
        self._keep: list[object] = []
        self._uploads: dict[int, MirroredBuffer] = {}
        self._downloads: dict[int, MirroredBuffer] = {}

        def operand(t: Tensor | None) -> Operand | None:
            if t is None:
                return None
            buffer, address = _place(memory, t)
            if isinstance(buffer, MirroredBuffer):
                moved = self._uploads if t.owner.role is Role.INPUT else self._downloads
                moved[buffer.address] = buffer
            return Operand.of(t, address)

        made: list[list[Launch | Gemm]] = []
        left: Launch | Gemm | None = None  # what the start of the scratch memory holds
        for n, nbytes in zip(nodes, wanted, strict=True):
            if not isinstance(n, Tensor):
                made.append(list(n))
                continue
            dst = operand(n)
            assert dst is not None
            call = Call(n, dst, tuple(operand(s) for s in n.srcs), info, self._scratch.address)
            op = list(launches(call))
            if nbytes:
                first = op[0] if isinstance(op[0], Launch) and op[0].leaves is not None else None
                if first is not None and first == left:
                    del op[0]
                left = first
            made.append(op)
        backend.modules.prepare(
            step.kernel for op in made for step in op if isinstance(step, Launch)
        )
        self._ops = [[backend.modules.bind(launch) for launch in op] for op in made]
        self.kernels: Sequence[str] = [
            "+".join(dict.fromkeys(s.kernel.entry if isinstance(s, Launch) else s.name for s in op))
            for op in made
        ]
        self._bring = self._transfers([b.spans()[0] for b in self._uploads.values()])
        self._take = self._transfers([b.spans()[1] for b in self._downloads.values()])
        self._runs = 0
        self._graph: Any = None
        self._timed: tuple[Any, CudaBuffer] | None = None

    def _transfers(self, spans: Sequence[tuple[int, int, int]]) -> list[Callable[[], None]]:
        """What enqueues copies between host and device: (to, from, bytes)."""
        small = list(mirror([s for s in spans if s[2] <= MIRROR_BYTES]))
        modules, copy = self._backend.modules, self._device.copy
        modules.prepare(m.kernel for m in small)
        large = [partial(copy, *s) for s in spans if s[2] > MIRROR_BYTES]
        return [*large, *(modules.bind(m).issue for m in small)]

    def _enqueue(self, clocks: Sequence[BoundLaunch | BoundGemm] = ()) -> None:
        """Put everything into the stream, between inputs that come and outputs that go."""
        for bring in self._bring:
            bring()
        self._issue(clocks)
        for take in self._take:
            take()

    def _issue(self, clocks: Sequence[BoundLaunch | BoundGemm] = ()) -> None:
        """Put the ops into the stream; `clocks` are n_ops + 1 timestamps to put between them."""
        if clocks:
            clocks[0].issue()
        for i, op in enumerate(self._ops):
            for launch in op:
                launch.issue()
            if clocks:
                clocks[i + 1].issue()

    def _capture(self, enqueue: Callable[[], None]) -> Any:
        stream = self._device.stream
        stream.begin_capture()
        try:
            enqueue()
        finally:  # a stream left capturing could not be used again
            graph = stream.end_capture()
        return graph

    def token_loop(self, tensors: Mapping[str, Tensor]) -> CudaTokenLoop:
        """Steps of this executable, each of which makes its tokens the next one's input.

        tensors: the plan's inputs by name, and the sampled tokens as `token`.
        """
        places = {name: (t, _place(self._memory, t)[1]) for name, t in tensors.items()}

        def begin() -> None:
            for bring in self._bring:
                bring()

        def capture(end: BoundLaunch | BoundGemm) -> Any:
            if self._runs == 0:
                self._issue()  # loads what the first launch loads, outside of the capture
                self._device.synchronize()

            def step() -> None:
                self._issue()
                end.issue()

            return self._capture(step)

        return CudaTokenLoop(self._backend, places, begin, capture)

    def run(self, ends_ns: np.ndarray | None = None) -> None:
        device = self._device
        device.use()
        if ends_ns is not None:
            return self._run_timed(ends_ns)
        if self._runs == 0:  # many plans run once, and capturing costs more than it saves then
            self._enqueue()
        else:
            if self._graph is None:
                self._graph = self._capture(self._enqueue)
            self._graph.launch(device.stream)
        self._runs += 1
        device.synchronize()

    def _run_timed(self, ends_ns: np.ndarray) -> None:
        """Replay a graph that also reads the device's clock after every op.

        ends_ns gets host time: the device's last reading is taken to be the moment the host learns
        of the end, and the others lie before it as the device's clock says.
        """
        if self._timed is None and self._runs == 0:
            self._enqueue()  # loads what the first launch loads, outside of the capture
            self._device.synchronize()
        graph, times = self._timed_graph()
        graph.launch(self._device.stream)
        self._device.synchronize()
        now = time.perf_counter_ns()
        ticks = read_ticks(times)
        ends_ns[:] = ticks - ticks[-1] + now
        self._runs += 1

    def _timed_graph(self) -> tuple[Any, CudaBuffer]:
        """The graph with timestamps, captured once, and where it leaves them."""
        if self._timed is None:
            times = CudaBuffer(self._device, 8 * (self.n_ops + 1))
            made = [timestamp(times.address + 8 * i) for i in range(self.n_ops + 1)]
            self._backend.modules.prepare([made[0].kernel])
            clocks = [self._backend.modules.bind(t) for t in made]
            self._timed = self._capture(partial(self._enqueue, clocks)), times
            self._keep.append(clocks)
        return self._timed


def _place(memory: Memory, t: Tensor) -> tuple[CudaBuffer, int]:
    """The buffer that holds a tensor, and the tensor's address."""
    buffer, offset = memory.locate(t.owner)
    if not isinstance(buffer, CudaBuffer):
        raise ValueError(f"{t.name}: the cuda backend cannot reach its memory")
    return buffer, buffer.address + offset + t.view_offset


def read_ticks(times: CudaBuffer) -> np.ndarray:
    """Readings of the device's clock: int64 nanoseconds."""
    return times.read(0, times.nbytes).view(np.uint64).astype(np.int64)
