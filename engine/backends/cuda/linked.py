"""A GPU program that meets the host in the middle: one captured graph, started and finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gguflow.engine.backends.base import Memory
from gguflow.engine.backends.link import FlagSignal, FlagWait, ProgramStep
from gguflow.engine.graph import Tensor
from gguflow.kernels.cuda import link
from gguflow.kernels.cuda.launch import Launch

from .executable import CudaExecutable, read_ticks
from .memory import CudaBuffer

if TYPE_CHECKING:
    from .backend import CudaBackend


class CudaProgram(CudaExecutable):
    """Nodes, signals and waits. Its nodes have run before, op by op, so nothing is left to load:
    loading may wait for the device, and the device here waits for the host."""

    def __init__(self, backend: CudaBackend, steps: Sequence[ProgramStep], memory: Memory) -> None:
        self._ticket = CudaBuffer(backend.device, link.WORD)
        super().__init__(backend, [self._lowered(s) for s in steps], memory)
        kernels = link.SIGNAL, link.WAIT
        backend.modules.prepare(kernels)
        for k in kernels:
            backend.modules.bind(link.idle(k)).issue()
        backend.device.synchronize()
        self._is_timed = False

    def _lowered(self, step: ProgramStep) -> Tensor | list[Launch]:
        if isinstance(step, Tensor):
            return step
        spans = [(t.target, t.source, t.nbytes) for t in step.transfers]
        ticket = self._ticket.address
        if isinstance(step, FlagSignal):
            return link.signal(step.flag, spans, ticket)
        assert isinstance(step, FlagWait)
        return link.wait(step.flag, spans, ticket, step.given_up, step.code, step.timeout_ns)

    def start(self, timed: bool = False) -> None:
        """Launch the graph and return; it is captured by the first start."""
        device = self._device
        device.use()
        self._is_timed = timed
        if timed:
            graph = self._timed_graph()[0]
        else:
            if self._graph is None:
                self._graph = self._capture(self._enqueue)
            graph = self._graph
        graph.launch(device.stream)

    def finish(self) -> np.ndarray | None:
        """Wait for the end; the clock's readings, int64 [n_ops + 1] nanoseconds, of a timed run."""
        self._device.synchronize()
        return read_ticks(self._timed_graph()[1]) if self._is_timed else None
