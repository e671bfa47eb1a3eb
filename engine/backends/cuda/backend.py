"""The CUDA backend: memory, weights and programs of one GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from gguflow.engine.backends.base import Backend, DeviceId, Links, Meets, Memory, Program, Rival
from gguflow.engine.backends.descriptors import check_step
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.compile import Step, row_gap
from gguflow.engine.graph import Tensor
from gguflow.engine.limits import EqualBits
from gguflow.kernels.cuda import all_reduce_norm, launch

from . import peaks, rivals, timing
from .compact import CudaCompactor
from .device import CudaDevice
from .memory import ALLOC_UNIT, CudaBuffer, MirroredBuffer, Uploader, adopt, pinned
from .modules import Modules
from .program import CudaProgram


class CudaBackend(Backend):
    """One GPU and its kernels. equal_bits: as in `Options`. Raises CudaError when there is none
    that can be used."""

    repeats_rows = True

    def __init__(self, device: int = 0, equal_bits: EqualBits = False) -> None:
        opened = CudaDevice(device, equal_bits)
        self.id = DeviceId("cuda", device)
        self.name = self.space = str(self.id)
        self.processor = opened.name
        self.modules = Modules(opened)
        self.n_alike = opened.count
        self._uploader = Uploader(opened)
        self._scratch = Scratch(opened)
        self._peaks: tuple[float, float, float, float] | None = None
        self._compute_with(opened)

    def _compute_with(self, device: CudaDevice) -> None:
        """What depends on which kernels there are."""
        self.device = device
        self.memory: CudaMemory = CudaMemory(device, self._scratch)
        self.clock = CudaClock(device, self.modules)
        self.links = Links(
            partial(_alloc_pinned, device),
            self._reaches,
            all_reduce_norm.channel_bytes,
            partial(all_reduce_norm.shares_rows, equal_bits=device.info.equal_bits),
            partial(adopt, device),
            device.card,
        )
        self.compactor = CudaCompactor(self)

    def with_bits(self, equal_bits: EqualBits) -> CudaBackend:
        device = self.device.with_bits(equal_bits)
        if device.info == self.device.info:
            return self
        other = copy.copy(self)
        other._compute_with(device)
        return other

    def _reaches(self, other: Backend) -> bool:
        return isinstance(other, CudaBackend) and self.device.reaches(other.device.index)

    def describe(self) -> str:
        device, (free, total) = self.device, self.device.memory()
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
        return launch.supports(node, self.device.info.equal_bits)

    def supports_strides(self, node: Tensor) -> bool:
        return launch.supports_strides(node, self.device.info)

    def alloc(self, nbytes: int) -> CudaBuffer:
        return CudaBuffer(self.device, nbytes)

    def alloc_shared(self, nbytes: int) -> MirroredBuffer:
        return MirroredBuffer(self.device, nbytes)

    def packed_bytes(self, weight: Tensor, users: Sequence[Tensor]) -> int:
        return 0

    def load_weight(self, weight: Tensor, raw: np.ndarray, packed: bool) -> CudaBuffer:
        buffer = CudaBuffer(self.device, weight.stored_bytes, zero=False)
        gap = row_gap(weight)
        self._uploader.upload(raw.reshape(-1).view(np.uint8), buffer, gap)
        row, zeros = gap or (1, 0)
        buffer.repeat(raw.nbytes // row * (row + zeros))
        return buffer

    def lower(
        self,
        steps: Sequence[Step],
        memory: Memory,
        n_threads: int | None = None,
        meets: Meets | None = None,
    ) -> CudaProgram:
        for step in steps:
            if isinstance(step, Tensor):
                check_step(step, memory)
        return CudaProgram(self, steps, memory, meets or Meets())

    def rival(self, node: Tensor, memory: Memory) -> Rival | None:
        return rivals.find(self, node, memory)


class Scratch:
    """Temporary memory for one op at a time, shared by everything in the stream."""

    def __init__(self, device: CudaDevice) -> None:
        self._device, self._buffer = device, CudaBuffer(device, 0)

    def __call__(self, nbytes: int) -> CudaBuffer:
        """So many bytes of it, or more."""
        if self._buffer.nbytes < nbytes:
            self._buffer = CudaBuffer(self._device, nbytes)
        return self._buffer


class CudaMemory:
    """What `DeviceMemory` asks."""

    unit = ALLOC_UNIT
    row_unit = 16  # what bulk copies and the widest loads want

    def __init__(self, device: CudaDevice, scratch: Scratch) -> None:
        self._device, self.scratch = device, scratch

    def room(self) -> tuple[int, int]:
        return self._device.memory()

    def scratch_bytes(self, nodes: Sequence[Tensor]) -> int:
        return max([launch.scratch_bytes(n, self._device.info) for n in nodes], default=0)

    def reserve(self, nbytes: int, scratch: int) -> None:
        """Take memory from the driver at once, out of which allocations are then cut: hundreds of
        small ones would take long and each be rounded up to the driver's pages.

        scratch: of these bytes, for the largest plan, so that it need not grow later.
        """
        with suppress(MemoryError):  # what is then allocated says what is missing
            CudaBuffer(self._device, nbytes, zero=False)
            self.scratch(scratch)

    def trim(self) -> None:
        """Give back memory that was freed, which the allocator keeps for later."""
        self._device.use()
        self._device.cupy.get_default_memory_pool().free_all_blocks()


class CudaClock:
    """Single kernels, timed by the device."""

    def __init__(self, device: CudaDevice, modules: Modules) -> None:
        self._device, self._modules = device, modules

    def prepare(self, nodes: Sequence[Tensor]) -> None:
        self._modules.prepare(timing.kernels(nodes, self._device.info))

    def cold(self, work: Program | Callable[[], Any], flush: Program, repeats: int) -> list[float]:
        return timing.time_cold(self._device, _issue(work), _issue(flush), repeats)


def _alloc_pinned(device: CudaDevice, nbytes: int) -> HostBuffer:
    memory = pinned(device, nbytes)
    memory[:] = 0
    return HostBuffer(memory)


def _issue(work: Program | Callable[[], Any]) -> Callable[[], Any]:
    """What puts the work alone into the stream, without inputs and outputs."""
    return work.issue if isinstance(work, CudaProgram) else work  # type: ignore[return-value]
