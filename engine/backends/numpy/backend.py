"""The numpy backend: the oracle that the other backends are held to."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from gguflow.engine.backends.base import (
    Backend,
    DeviceId,
    Live,
    Meets,
    Memory,
    Program,
    Ticks,
    refuse,
)
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.compile import Step
from gguflow.engine.compile.batch_rows import fewer_rows
from gguflow.engine.graph import Tensor

from .evaluate import run_node


class NumpyBackend(Backend):
    """The references as a backend: runs every op on every type, slowly."""

    id = DeviceId("numpy")
    name = "numpy"
    space = "host"

    def describe(self) -> str:
        return "reference implementations of every op, slow"

    def supports(self, node: Tensor) -> bool:
        return node.op is not None

    def supports_strides(self, node: Tensor) -> bool:
        return True

    def peaks(self) -> tuple[float, ...] | None:
        return None

    def alloc(self, nbytes: int) -> HostBuffer:
        return HostBuffer.zeros(nbytes)

    def alloc_shared(self, nbytes: int) -> HostBuffer:
        return HostBuffer.zeros(nbytes)

    def packed_bytes(self, weight: Tensor, users: Sequence[Tensor]) -> int:
        return 0

    def load_weight(self, weight: Tensor, raw: np.ndarray, packed: bool) -> HostBuffer:
        return HostBuffer(raw)

    def lower(
        self,
        steps: Sequence[Step],
        memory: Memory,
        n_threads: int | None = None,
        meets: Meets | None = None,
    ) -> Program:
        return NumpyProgram(self.name, steps, memory)


class NumpyProgram(Program):
    """Nodes run one by one."""

    def __init__(self, name: str, steps: Sequence[Step], memory: Memory) -> None:
        self._nodes = [s if isinstance(s, Tensor) else refuse(s, name) for s in steps]
        self.kernels = [f"{n.op}.reference" for n in self._nodes]
        self._buffers = buffers_of(self._nodes, memory)
        self._rows = memory.rows
        self._ticks: list[int] | None = None

    def start(self, timed: bool = False, live: Live | None = None) -> None:
        ticks = [time.perf_counter_ns()]
        nodes = (
            self._nodes if live is None else [fewer_rows(n, self._rows, live) for n in self._nodes]
        )
        for node in nodes:
            run_node(node, self._buffers)
            ticks.append(time.perf_counter_ns())
        self._ticks = ticks if timed else None

    def finish(self) -> Ticks | None:
        ticks, self._ticks = self._ticks, None
        return None if ticks is None else Ticks(np.array(ticks, np.int64), of_host=True)


def buffers_of(nodes: Sequence[Tensor], memory: Memory) -> dict[Tensor, np.ndarray]:
    """The bytes of all that the nodes read and write. Raises ValueError for what lies elsewhere."""
    found = {}
    for owner in {t.owner for n in nodes for t in (n, *n.live_srcs())}:
        buffer, offset = memory.locate(owner)
        data = buffer.host()
        if data is None:
            raise ValueError(f"{owner.name}: the numpy backend cannot reach its memory")
        found[owner] = data.view(np.uint8)[offset : offset + owner.stored_bytes]
    return found
