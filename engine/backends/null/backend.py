"""A device that is not there: every op, as much memory and speed as one says."""

from __future__ import annotations

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
    refuse,
)
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.compile import Step
from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import Tensor, op_spec
from gguflow.kernels.cuda.all_reduce_norm import channel_bytes, shares_rows

UNIT = 512  # bytes that allocations are multiples of
MEMORY = 1 << 40
# GB/s read, GFLOP/s of float32, GOP/s of int8, GFLOP/s of float16: round numbers of a large GPU.
PEAKS = (1_000.0, 50_000.0, 1_000_000.0, 500_000.0)


class NullError(RuntimeError):
    """Something was to run, or to be read, where nothing does."""


class NullBackend(Backend):
    """peaks: GB/s read, GFLOP/s of float32, GOP/s of int8, GFLOP/s of float16. memory: bytes."""

    processor = "null"

    def __init__(
        self, index: int = 0, peaks: tuple[float, ...] = PEAKS, memory: int = MEMORY
    ) -> None:
        self.id = DeviceId("null", index)
        self.name = self.space = str(self.id)
        self.memory: NullMemory = NullMemory(memory)
        self._peaks = peaks
        # Plans over several are those of GPUs: sums are exchanged, with the same room for them.
        self.links = Links(
            reaches=lambda other: isinstance(other, NullBackend),
            channel_bytes=channel_bytes,
            shares_rows=shares_rows,
        )

    def describe(self) -> str:
        return "no device: plans and expected times, nothing runs"

    def supports(self, node: Tensor) -> bool:
        return node.op is not None

    def supports_strides(self, node: Tensor) -> bool:
        return True

    def peaks(self) -> tuple[float, ...]:
        return self._peaks

    def costs(self, node: Tensor) -> float:
        """Seconds: its bytes at the rate of memory, or its operations at that of arithmetic."""
        spec = op_spec(node.op or "")
        read, *rates = self._peaks
        sources = [s.dtype for s in node.live_srcs()]
        f32, int8, f16 = (*rates, *rates[:1] * (3 - len(rates)))
        quantized = any(t.is_quantized for t in sources)
        rate = int8 if quantized else f16 if any(t.nbytes == 2 for t in sources) else f32
        return max(spec.bytes(node) / read, spec.flops(node) / rate) / 1e9

    def alloc(self, nbytes: int) -> NullBuffer:
        self.memory.take(nbytes, self.name)
        return NullBuffer(nbytes)

    def alloc_shared(self, nbytes: int) -> HostBuffer:
        self.memory.take(nbytes, self.name)
        return HostBuffer.zeros(nbytes)

    def packed_bytes(self, weight: Tensor, users: Sequence[Tensor]) -> int:
        return 0

    def load_weight(self, weight: Tensor, raw: np.ndarray, packed: bool) -> NullBuffer:
        return self.alloc(raw.nbytes)

    def lower(
        self,
        steps: Sequence[Step],
        memory: Memory,
        n_threads: int | None = None,
        meets: Meets | None = None,
    ) -> NullProgram:
        for s in steps:
            if not isinstance(s, Tensor):
                refuse(s, self.name)
        return NullProgram(self.name, [s.op or "" for s in steps if isinstance(s, Tensor)])


@dataclass
class NullBuffer:
    """So many bytes, of which there are none."""

    nbytes: int
    address: int = 0

    def host(self) -> None:
        return None

    def read(self, offset: int, nbytes: int, into: np.ndarray | None = None) -> np.ndarray:
        raise NullError("a null device holds no bytes to read")

    def write(self, offset: int, data: np.ndarray) -> None:
        """Dropped."""

    def move(self, to: int, source: int, nbytes: int) -> None:
        """Nothing is there."""


class NullMemory:
    """What `DeviceMemory` asks."""

    unit = UNIT
    row_unit = 1

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.taken = 0

    def take(self, nbytes: int, name: str) -> None:
        """Raises MemoryError with the figures."""
        wanted = -(-nbytes // UNIT) * UNIT
        if self.taken + wanted > self.nbytes:
            free = self.nbytes - self.taken
            raise MemoryError(f"{name}: cannot allocate {nbytes} bytes: {free} are free")
        self.taken += wanted

    def room(self) -> tuple[int, int]:
        return self.nbytes - self.taken, self.nbytes

    def scratch_bytes(self, nodes: Sequence[Tensor]) -> int:
        return 0

    def reserve(self, nbytes: int, scratch: int) -> None:
        """Nothing is taken ahead."""

    def trim(self) -> None:
        """Nothing was freed."""


class NullProgram(Program):
    """Steps that are not run."""

    def __init__(self, name: str, kernels: Sequence[str]) -> None:
        self.kernels = kernels
        self._name = name

    def start(self, timed: bool = False, live: Live | None = None) -> None:
        raise NullError(f"{self._name} plans and costs, it runs nothing: place the model elsewhere")

    def finish(self) -> Ticks | None:
        return None
