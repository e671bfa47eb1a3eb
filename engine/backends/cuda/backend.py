"""The CUDA backend: memory, weights and segments of one GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from gguflow.engine.backends.base import Memory
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.backends.link import ProgramStep
from gguflow.engine.graph import Tensor
from gguflow.kernels.cuda import launch

from . import peaks, rivals, timing
from .device import CudaDevice
from .executable import CudaExecutable
from .linked import CudaProgram
from .memory import ALLOC_UNIT, CudaBuffer, MirroredBuffer, Uploader, pinned
from .modules import Modules


class CudaBackend:
    """One GPU and its kernels. Raises CudaError when there is no GPU that can be used."""

    name = "cuda"
    alloc_unit = ALLOC_UNIT

    def __init__(self, device: int = 0) -> None:
        self.device = CudaDevice(device)
        self.space = f"cuda:{device}"
        self.modules = Modules(self.device)
        self._uploader = Uploader(self.device)
        self._scratch = CudaBuffer(self.device, 0)
        self._peaks: tuple[float, float, float, float] | None = None

    def describe(self) -> str:
        device, (free, total) = self.device, self.memory()
        return (
            f"{device.name}, {device.info.arch}, {device.info.sm_count} multiprocessors, "
            f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
        )

    def peaks(self) -> tuple[float, float, float, float] | None:
        """As `peaks.measure`, once."""
        if self._peaks is None:
            self._peaks = peaks.measure(self)
        return self._peaks

    def supports(self, node: Tensor) -> bool:
        return launch.supports(node)

    def memory(self) -> tuple[int, int]:
        """(free, all) bytes of the GPU's memory."""
        return self.device.memory()

    def reserve(self, nbytes: int, scratch: int) -> None:
        """Take memory from the driver at once, out of which allocations are then cut: hundreds of
        small ones would take long and each be rounded up to the driver's pages.

        scratch: of these bytes, for the largest plan, so that it need not grow later.
        """
        with suppress(MemoryError):  # what is then allocated says what is missing
            CudaBuffer(self.device, nbytes, zero=False)
            self.scratch(scratch)

    def alloc(self, nbytes: int) -> CudaBuffer:
        return CudaBuffer(self.device, nbytes)

    def alloc_shared(self, nbytes: int) -> MirroredBuffer:
        return MirroredBuffer(self.device, nbytes)

    def scratch(self, nbytes: int) -> CudaBuffer:
        """Temporary memory for one op at a time, shared by everything in the stream."""
        if self._scratch.nbytes < nbytes:
            self._scratch = CudaBuffer(self.device, nbytes)
        return self._scratch

    def scratch_bytes(self, nodes: Sequence[Tensor]) -> int:
        """What `scratch` will be asked for by a plan with these nodes."""
        return max([launch.scratch_bytes(n, self.device.info) for n in nodes], default=0)

    def trim(self) -> None:
        """Give back memory that was freed, which the allocator keeps for later."""
        self.device.use()
        self.device.cupy.get_default_memory_pool().free_all_blocks()

    def packed_bytes(self, weight: Tensor, users: Sequence[Tensor]) -> int:
        return 0

    def load_weight(self, weight: Tensor, raw: np.ndarray, packed: bool) -> CudaBuffer:
        buffer = CudaBuffer(self.device, raw.nbytes, zero=False)
        self._uploader.upload(raw.reshape(-1).view(np.uint8), buffer)
        return buffer

    def compile(
        self, nodes: Sequence[Tensor], memory: Memory, n_threads: int | None = None
    ) -> CudaExecutable:
        return CudaExecutable(self, nodes, memory)

    # -- measuring single kernels ----------------------------------------------------------------

    def prepare(self, nodes: Sequence[Tensor]) -> None:
        """Compile and load the kernels of these nodes, several at a time."""
        self.modules.prepare(timing.kernels(nodes, self.device.info))

    def time_cold(
        self, work: CudaExecutable | Callable[[], Any], flush: CudaExecutable, repeats: int
    ) -> list[float]:
        """Microseconds of each of `repeats` runs of `work`, with `flush` run before each."""
        issue = work._issue if isinstance(work, CudaExecutable) else work
        return timing.time_cold(self.device, issue, flush._issue, repeats)

    def rival(self, node: Tensor, memory: Memory) -> rivals.Rival | None:
        """The node's operation as a library does it, or None."""
        return rivals.find(self, node, memory)

    def alloc_pinned(self, nbytes: int) -> HostBuffer:
        memory = pinned(self.device, nbytes)
        memory[:] = 0
        return HostBuffer(memory)

    def compile_device_program(self, steps: Sequence[ProgramStep], memory: Memory) -> CudaProgram:
        return CudaProgram(self, steps, memory)
