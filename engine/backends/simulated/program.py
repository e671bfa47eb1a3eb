"""Programs of simulated devices: steps in the device's stream."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from gguflow.engine.backends.base import Live, Meets, Memory, Program, Ticks
from gguflow.engine.backends.host import read, write
from gguflow.engine.backends.numpy import buffers_of, run_node
from gguflow.engine.compile import Recv, Send, Step
from gguflow.engine.compile.batch_rows import fewer_rows
from gguflow.engine.graph import Tensor, exchanged, exchanged_by_rank, op_spec

from .channel import all_reduce, exchange
from .loop import SimulatedLoop
from .stream import Done, Stream
from .waiting import wait_until


class SimulatedProgram(Program):
    """Steps of one device, which meet those of others."""

    def __init__(self, stream: Stream, steps: Sequence[Step], memory: Memory, meets: Meets) -> None:
        self.steps = steps
        self.kernels = [f"{s.op}.reference" if isinstance(s, Tensor) else "memmove" for s in steps]
        self._stream, self._memory, self._meets = stream, memory, meets
        nodes = [s for s in steps if isinstance(s, Tensor)]
        self._buffers = buffers_of(nodes, memory)
        self._done: Done | None = None
        self._ticks: list[int] = []
        self._is_timed = False

    def start(self, timed: bool = False, live: Live | None = None) -> None:
        self._is_timed = timed
        self._done = self._stream.put(partial(self._work, live))

    def finish(self) -> Ticks | None:
        done, self._done = self._done, None
        if done is not None:
            done.wait()
        return Ticks(np.array(self._ticks, np.int64), of_host=True) if self._is_timed else None

    def token_loop(self, tensors: Mapping[str, Tensor]) -> SimulatedLoop:
        at = {}
        for name, t in tensors.items():
            buffer, offset = self._memory.locate(t.owner)
            raw = buffer.host()
            assert raw is not None
            at[name] = np.ndarray(
                t.shape, t.dtype.storage, raw.data, offset + t.view_offset, t.strides
            )

        def run() -> None:
            for step in self.steps:
                self._run(step, None)

        return SimulatedLoop(self._stream, at, run)

    def _work(self, live: Live | None) -> None:
        self._ticks = [time.perf_counter_ns()]
        for step in self.steps:
            self._run(step, live)
            self._ticks.append(time.perf_counter_ns())

    def _run(self, step: Step, live: Live | None) -> None:
        if isinstance(step, Tensor):
            node = step if live is None else fewer_rows(step, self._memory.rows, live)
            if step not in self._meets.reduces:
                return run_node(node, self._buffers)
            return write(node, self._buffers, self._exchanged(node, step), None)
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

    def _exchanged(self, node: Tensor, step: Tensor) -> np.ndarray:
        """The result of a node that exchanges; rubbish once the run was given up."""
        reduce, by_rank = self._meets.reduces[step], exchanged_by_rank(node)
        own = [read(t, self._buffers) for t in by_rank[reduce.rank]]
        beside = node.srcs[: -len(exchanged(node))]
        values = [None if t is None else read(t, self._buffers) for t in beside]
        if len(own) == 1:
            total = all_reduce(own[0], reduce)
            return sum((v for v in values if v is not None), start=total)
        shapes = [(sum(t.shape[0] for t in made), *made[0].shape[1:]) for made in by_rank]
        found = exchange(np.concatenate(own), shapes, reduce)
        if found is None:
            return np.zeros(node.shape, np.float32)
        parts = (x for made, both in zip(by_rank, found, strict=True)
                 for x in np.split(both, [made[0].shape[0]]))  # fmt: skip
        return op_spec(node.op or "").reference(*values, *parts, **node.params)
