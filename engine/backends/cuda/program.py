"""A program of the GPU: kernels put into its stream, captured as a graph and replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from gguflow.engine.backends.base import (
    DraftStep,
    Live,
    Meets,
    Memory,
    Program,
    RoundMemory,
    Ticks,
    refuse,
)
from gguflow.engine.compile import Recv, Send, Step
from gguflow.engine.graph import Role, Tensor
from gguflow.kernels.cuda import link
from gguflow.kernels.cuda.beside import with_room
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.kernels.cuda.launch import (
    MOST_JOINED,
    Call,
    CompactForm,
    Launch,
    Operand,
    joined,
    launches,
    scratch_bytes,
)
from gguflow.kernels.cuda.mirror import mirror
from gguflow.kernels.cuda.timestamp import timestamp

from .cublas import BoundGemm
from .exchange import Exchanges
from .memory import CudaBuffer, MirroredBuffer
from .modules import BoundLaunch
from .token_loop import CudaTokenLoop, LoopStep

if TYPE_CHECKING:
    from .backend import CudaBackend

MIRROR_BYTES = 64 << 10  # larger inputs and outputs go by the copy engine


class CudaProgram(Program):
    """Ready to run. A run ends when the device has finished, so the host may read and write its
    copies of inputs and outputs at once.

    Many programs run once, and capturing costs more than it saves then: the first run launches op
    by op, the second captures a graph, later ones replay it. A program with meetings is captured
    at once: loading a kernel may wait for the device, which waits for the host in the middle, so
    nothing may be left to load when it is started. Own kernels are loaded when they are prepared;
    a library's are by their first call, so each product is issued once before.
    """

    def __init__(
        self, backend: CudaBackend, steps: Sequence[Step], memory: Memory, meets: Meets
    ) -> None:
        self._backend = backend
        backend.n_made += 1
        self._device = backend.device
        self._device.use()
        info = self._device.info
        wanted = [scratch_bytes(s, info) if isinstance(s, Tensor) else 0 for s in steps]
        self._scratch = backend.memory.scratch(max(wanted, default=0))
        self._memory = memory
        self._keep: list[object] = [meets.memory]
        self._uploads: dict[int, MirroredBuffer] = {}
        self._downloads: dict[int, MirroredBuffer] = {}
        waits = bool(meets.reduces) or any(not isinstance(s, Tensor) for s in steps)
        self._ticket = CudaBuffer(self._device, link.WORD) if waits else None

        exchanges = Exchanges(self._device, steps, meets.reduces)
        calls = [
            self._call(s, memory, exchanges)
            if isinstance(s, Tensor) and s not in meets.reduces
            else None
            for s in steps
        ]
        made: list[list[Launch | Gemm]] = []
        left: Launch | Gemm | None = None  # what the start of the scratch memory holds
        for i, (s, nbytes) in enumerate(zip(steps, wanted, strict=True)):
            if i < len(made):  # computed with one before
                continue
            if not isinstance(s, Tensor):
                made.append(list(self._meeting(s, meets)))
                continue
            call = calls[i]
            if call is None:
                locate = partial(self._operand, memory=memory)
                following = calls[i + 1 : i + 1 + MOST_JOINED]
                op = self._first_of(following) if exchanges.makes_norm(s) else []
                first = op[0] if op else None
                norm = first.norm if isinstance(first, Launch) and first.leaves is s else None
                made.append([exchanges.launch(s, locate, norm)])
                if norm is not None:
                    made.append(op[1:])
                    left = first
                continue
            together = joined([c for c in takewhile(bool, calls[i : i + MOST_JOINED]) if c])
            if together is not None:
                made += ([*op] for op in together)
                left = None
                continue
            op = list(launches(call))
            if nbytes:
                first = op[0] if isinstance(op[0], Launch) and op[0].leaves is not None else None
                if first is not None and first == left:
                    del op[0]
                left = first
            made.append(op)
        made = with_room(made, info)
        backend.modules.prepare(
            step.kernel for op in made for step in op if isinstance(step, Launch)
        )
        self._ops = [[backend.modules.bind(launch) for launch in op] for op in made]
        self.kernels = [
            "+".join(dict.fromkeys(s.kernel.entry if isinstance(s, Launch) else s.name for s in op))
            for op in made
        ]
        self._bring = self._transfers([b.spans()[0] for b in self._uploads.values()])
        self._take = self._transfers([b.spans()[1] for b in self._downloads.values()])
        self._is_loaded = False
        self._end: Any = None  # of a run, behind which another plan's may be under way
        if waits:
            self._load()
            self._end = self._device.event()
        self._graph: Any = None
        self._timed: tuple[Any, CudaBuffer] | None = None
        self._is_timed = False

    @staticmethod
    def _first_of(calls: Sequence[Call | None]) -> list[Launch | Gemm]:
        """The launches of the first of these ops; none where it is launched with others."""
        several = [c for c in takewhile(bool, calls) if c]
        return list(launches(several[0])) if several and joined(several) is None else []

    def _call(self, node: Tensor, memory: Memory, exchanges: Exchanges) -> Call:
        dst = self._operand(node, memory)
        assert dst is not None
        srcs = tuple(self._operand(x, memory) for x in node.srcs)
        rounded = exchanges.rounded(node, partial(self._operand, memory=memory))
        return Call(node, dst, srcs, self._device.info, self._scratch.address, rounded)

    def _operand(self, t: Tensor | None, memory: Memory) -> Operand | None:
        if t is None:
            return None
        buffer, address = _place(memory, t)
        if isinstance(buffer, MirroredBuffer) and buffer.device is self._device:
            moved = self._uploads if t.owner.role is Role.INPUT else self._downloads
            moved[buffer.address] = buffer
        operand = Operand.of(t, address)
        if buffer.compact is not None and t.owner is t:
            form = CompactForm(buffer.compact.address, buffer.compact.layout)
            operand = replace(operand, compact=form)
        return operand

    def _meeting(self, step: Send | Recv, meets: Meets) -> Sequence[Launch]:
        if step.meeting not in meets.flags:
            refuse(step, self._backend.name)
        flag = meets.flags[step.meeting]
        spans = [(t.target, t.source, t.nbytes) for t in flag.transfers]
        assert self._ticket is not None
        ticket = self._ticket.address
        if isinstance(step, Send):
            return link.signal(flag.address, spans, ticket)
        return link.wait(flag.address, spans, ticket, flag.given_up, flag.code, flag.timeout_ns)

    def _load(self) -> None:
        """Have everything loaded that the first run would load, once. No op but products is run for
        it: one that moves a recurrent state on would do so twice. What a product writes is nobody's
        before a run has begun, but for another device's memory, where one may be under way."""
        if self._is_loaded:
            return
        device, modules = self._device, self._backend.modules
        device.use()
        for op in self._ops:
            for step in op:
                if not isinstance(step, BoundGemm):
                    continue
                if device.is_elsewhere(step.gemm.d.address):
                    step.issue(CudaBuffer(device, step.gemm.d_bytes, zero=False).address)
                else:
                    step.issue()
        if self._ticket is not None:
            kernels = link.SIGNAL, link.WAIT
            modules.prepare(kernels)
            for k in kernels:
                modules.bind(link.idle(k)).issue()
        device.synchronize()
        self._is_loaded = True

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
        self.issue(clocks)
        for take in self._take:
            take()

    def issue(self, clocks: Sequence[BoundLaunch | BoundGemm] = ()) -> None:
        """Put the ops into the stream, between timestamps if given, one more than there are ops."""
        if clocks:
            clocks[0].issue()
        for i, op in enumerate(self._ops):
            for launch in op:
                launch.issue()
            if clocks:
                clocks[i + 1].issue()

    def _capture(self, enqueue: Callable[[], None]) -> Any:
        stream = self._device.stream
        self._backend.n_made += 1
        stream.begin_capture()
        try:
            enqueue()
        except BaseException:
            # A stream left capturing could not be used again. What was captured is of no use, and
            # that it is broken is no news.
            with suppress(RuntimeError):
                stream.end_capture()
            raise
        return stream.end_capture()

    def token_loop(self, tensors: Mapping[str, Tensor]) -> CudaTokenLoop:
        return CudaTokenLoop(self._backend, self._loop_step(tensors), self._keep)

    def round_loop(
        self, tensors: Mapping[str, Tensor], keep: RoundMemory, drafts: Sequence[DraftStep] = ()
    ) -> CudaTokenLoop | None:
        mine, steps, kept = self._loop_step(tensors), [], [self._keep]
        for d in drafts:
            if not (isinstance(d.program, CudaProgram) and d.program._follows(self)):
                return None
            steps.append(d.program._loop_step(d.tensors))
            kept.append(d.program._keep)
        return CudaTokenLoop(self._backend, mine, kept, keep, steps)

    def _follows(self, other: CudaProgram) -> bool:
        """Whether what is started of both takes turns, in one stream."""
        return self._device.stream is other._device.stream

    def _loop_step(self, tensors: Mapping[str, Tensor]) -> LoopStep:
        places = {name: (t, _place(self._memory, t)[1]) for name, t in tensors.items()}

        def begin() -> None:
            for bring in self._bring:
                bring()

        def capture(ends: Sequence[BoundLaunch | BoundGemm]) -> Any:
            self._load()

            def step() -> None:
                self.issue()
                for end in ends:
                    end.issue()

            return self._capture(step)

        return LoopStep(places, begin, capture)

    def prepare(self, timed: bool = False) -> None:
        """Have the graph at hand where another device's run may be under way, which waits for this
        one: nothing else is to be asked of the driver then."""
        with self._device.told():
            self._device.use()
            if timed:
                self._load()
                self._timed_graph()
            elif self._is_loaded and self._graph is None:
                self._graph = self._capture(self._enqueue)

    def start(self, timed: bool = False, live: Live | None = None) -> None:
        """Put a run into the stream and return. All rows are computed, whatever `live` says. Raises
        CudaError for what cannot be put there."""
        with self._device.told():
            self._start(timed)

    def _start(self, timed: bool) -> None:
        device = self._device
        device.use()
        self._is_timed = timed
        if timed:
            self._load()
            self._timed_graph()[0].launch(device.stream)
        elif not self._is_loaded:
            self._enqueue()
            self._is_loaded = True
        else:
            if self._graph is None:
                self._graph = self._capture(self._enqueue)
            self._graph.launch(device.stream)
        if self._end is not None:
            self._end.record(device.stream)

    def finish(self) -> Ticks | None:
        """Wait for the end; of a timed run, the readings of the device's clock."""
        if self._end is None:
            self._device.synchronize()
        else:
            self._device.wait(self._end)
        if not self._is_timed:
            return None
        return Ticks(read_ticks(self._timed_graph()[1]), of_host=False)

    def _timed_graph(self) -> tuple[Any, CudaBuffer]:
        """The graph with timestamps, captured once, and where it leaves them."""
        if self._timed is None:
            times = CudaBuffer(self._device, 8 * (len(self._ops) + 1))
            made = [timestamp(times.address + 8 * i) for i in range(len(self._ops) + 1)]
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
