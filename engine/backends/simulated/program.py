"""Programs of simulated devices: steps that a thread runs."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence

import numpy as np

from gguflow.engine.backends.base import Live, Meets, Memory, Program, Ticks
from gguflow.engine.backends.host import read, write
from gguflow.engine.backends.numpy import buffers_of, run_node
from gguflow.engine.compile import Recv, Send, Step
from gguflow.engine.compile.batch_rows import fewer_rows
from gguflow.engine.graph import Tensor

from .channel import all_reduce
from .waiting import wait_until


class SimulatedProgram(Program):
    """Steps of one device, which meet those of others."""

    def __init__(self, steps: Sequence[Step], memory: Memory, meets: Meets) -> None:
        self.steps = steps
        self.kernels = [f"{s.op}.reference" if isinstance(s, Tensor) else "memmove" for s in steps]
        self._meets = meets
        nodes = [s for s in steps if isinstance(s, Tensor)]
        self._buffers = buffers_of(nodes, memory)
        self._rows = memory.rows
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._ticks: list[int] = []
        self._is_timed = False

    def start(self, timed: bool = False, live: Live | None = None) -> None:
        assert self._thread is None
        self._is_timed = timed
        self._thread = threading.Thread(target=self._work, args=(live,), daemon=True)
        self._thread.start()

    def finish(self) -> Ticks | None:
        if self._thread is not None:
            self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error
        return Ticks(np.array(self._ticks, np.int64), of_host=True) if self._is_timed else None

    def _work(self, live: Live | None) -> None:
        try:
            self._ticks = [time.perf_counter_ns()]
            for step in self.steps:
                self._run(step, live)
                self._ticks.append(time.perf_counter_ns())
        except BaseException as e:  # raised by `finish`
            self._error = e

    def _run(self, step: Step, live: Live | None) -> None:
        if isinstance(step, Tensor):
            node = step if live is None else fewer_rows(step, self._rows, live)
            if step not in self._meets.reduces:
                return run_node(node, self._buffers)
            reduce = self._meets.reduces[step]
            part = node.live_srcs()[reduce.rank]
            return write(node, self._buffers, all_reduce(read(part, self._buffers), reduce), None)
        flag = self._meets.flags[step.meeting]
        word = ctypes.c_uint32.from_address(flag.address)
        if isinstance(step, Recv):
            wait_until(lambda: word.value != 0, flag)
            word.value = 0
        for t in flag.transfers:
            ctypes.memmove(t.target, t.source, t.nbytes)
        if isinstance(step, Send):
            word.value = 1
        return None
