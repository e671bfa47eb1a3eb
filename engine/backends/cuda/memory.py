"""Device memory, memory with a pinned copy on the host, and the way weights get there."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from gguflow.engine.pool import Pool
from gguflow.kernels.cuda.mirror import ALIGN

from .device import CudaDevice

STAGING_BYTES = 32 << 20  # of one pinned buffer: a few milliseconds of bus time
STAGING_BUFFERS = 3  # one being filled, one on the bus, one waiting
ALLOC_UNIT = 512  # CuPy's pool rounds up to it
REGISTERED = 1 | 2  # cudaHostRegisterPortable and Mapped
SAME_ADDRESS = 91  # cudaDevAttrCanUseHostPointerForRegisteredMem
COPY_THREADS = 4  # that fill a staging buffer: one alone is slower than the bus


class CudaBuffer:
    """Device memory, zeroed unless told otherwise. compact: of a weight, the same in its compact
    form, if that is there too. Raises MemoryError with the figures when there is not enough."""

    def __init__(self, device: CudaDevice, nbytes: int, zero: bool = True) -> None:
        self.compact: CompactBuffer | None = None
        self.device = device
        self.nbytes = nbytes
        device.use()
        try:
            with device.stream:
                self._memory = device.cupy.cuda.alloc(max(nbytes, 1))
        except device.cupy.cuda.memory.OutOfMemoryError:
            free, total = device.memory()
            raise MemoryError(
                f"cuda:{device.index}: cannot allocate {nbytes} bytes: {free} of {total} are free; "
                "lower `n_gpu_layers`, `n_ctx` or `n_ubatch`"
            ) from None
        self.address = int(self._memory.ptr)
        if zero:
            device.runtime.memsetAsync(self.address, 0, max(nbytes, 1), device.stream.ptr)

    def host(self) -> np.ndarray | None:
        return None

    def read(self, offset: int, nbytes: int, into: np.ndarray | None = None) -> np.ndarray:
        """A copy of these bytes; waits for what runs on the device."""
        out = np.empty(nbytes, np.uint8) if into is None else into[:nbytes]
        d = self.device
        d.use()
        if nbytes:
            d.runtime.memcpyAsync(
                out.ctypes.data, self.address + offset, nbytes, d.runtime.memcpyDeviceToHost,
                d.stream.ptr,
            )  # fmt: skip
        d.synchronize()
        return out

    def write(self, offset: int, data: np.ndarray) -> None:
        """Overwrite bytes from `offset` on; waits until they are there."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        d = self.device
        d.use()
        if raw.nbytes:
            d.runtime.memcpyAsync(
                self.address + offset, raw.ctypes.data, raw.nbytes, d.runtime.memcpyHostToDevice,
                d.stream.ptr,
            )  # fmt: skip
        d.synchronize()

    def repeat(self, nbytes: int) -> None:
        """Fill the buffer with its first bytes, again and again."""
        self.device.use()
        while 0 < nbytes < self.nbytes:
            more = min(nbytes, self.nbytes - nbytes)
            self.device.copy(self.address + nbytes, self.address, more)
            nbytes += more

    def move(self, to: int, source: int, nbytes: int) -> None:
        """Copy bytes within the buffer, in the order of the device's stream."""
        self.device.use()
        self.device.copy(self.address + to, self.address + source, nbytes)


class CompactBuffer(CudaBuffer):
    """A weight in its compact form. layout: how it lies there."""

    def __init__(self, device: CudaDevice, nbytes: int, layout: str) -> None:
        super().__init__(device, nbytes, zero=False)
        self.layout = layout


def pinned(device: CudaDevice, nbytes: int) -> np.ndarray:
    """Page-locked host memory as a uint8 array."""
    device.use()
    memory = device.cupy.cuda.alloc_pinned_memory(max(nbytes, 1))
    return np.frombuffer(memory, np.uint8, nbytes)


def adopt(device: CudaDevice, memory: np.ndarray) -> None:
    """Page-lock host memory for all devices of this process, as long as the array lives. Raises
    OSError where the driver refuses, or where devices would have it at another address."""
    device.use()
    runtime, address = device.runtime, memory.ctypes.data
    if not runtime.deviceGetAttribute(SAME_ADDRESS, device.index):
        raise OSError(f"{device.name} has locked memory of the host at another address")
    try:
        runtime.hostRegister(address, memory.nbytes, REGISTERED)
    except runtime.CUDARuntimeError as e:
        raise OSError(f"memory of the host cannot be page-locked: {e}") from None
    weakref.finalize(memory, runtime.hostUnregister, address).atexit = False


class MirroredBuffer(CudaBuffer):
    """Device memory with a pinned copy that the host reads and writes.

    An executable brings inputs from the copy to the device when it starts, and results from the
    device to the copy when it ends, both as part of its captured graph.
    """

    def __init__(self, device: CudaDevice, nbytes: int) -> None:
        nbytes = -(-nbytes // ALIGN) * ALIGN
        super().__init__(device, nbytes)
        self.mirror = pinned(device, nbytes)
        self.mirror[:] = 0

    def host(self) -> np.ndarray:
        return self.mirror

    def read(self, offset: int, nbytes: int, into: np.ndarray | None = None) -> np.ndarray:
        return self.mirror[offset : offset + nbytes]

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.mirror[offset : offset + raw.nbytes] = raw
        super().write(offset, raw)

    def spans(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """(to, from, bytes) of the copy to the device and of the one back."""
        here, there = self.mirror.ctypes.data, self.address
        return (there, here, self.nbytes), (here, there, self.nbytes)


class Uploader:
    """Copies weights to the device through pinned buffers, so that reading the file and the bus
    work at the same time. `upload` returns before the last bytes have arrived; whatever runs in the
    device's stream afterwards sees them."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self._buffers: list[np.ndarray] = []
        self._events: list[Any] = []
        self._next = 0
        self._threads = Pool(COPY_THREADS)

    def upload(self, raw: np.ndarray, buffer: CudaBuffer, gap: tuple[int, int] | None) -> None:
        """raw: uint8, flat. gap: (bytes of a row, bytes of zeros behind it), or None for none."""
        d = self.device
        d.use()
        row, zeros = gap or (1, 0)
        rows = raw.reshape(-1, row)
        for begin, end in _pieces(len(rows), STAGING_BYTES // (row + zeros)):
            memory, event = self._slot()
            staging = memory[: (end - begin) * (row + zeros)].reshape(-1, row + zeros)
            part = -(-(end - begin) // COPY_THREADS)

            def fill(i: int, staging: np.ndarray = staging, at: int = begin, end: int = end,
                     part: int = part) -> None:  # fmt: skip
                piece = rows[at + i * part : min(at + (i + 1) * part, end)]
                mine = staging[i * part : i * part + len(piece)]
                mine[:, :row] = piece
                mine[:, row:] = 0

            list(self._threads.map(fill, range(COPY_THREADS)))
            d.runtime.memcpyAsync(
                buffer.address + begin * (row + zeros), staging.ctypes.data, staging.nbytes,
                d.runtime.memcpyHostToDevice, d.stream.ptr,
            )  # fmt: skip
            event.record(d.stream)

    def _slot(self) -> tuple[np.ndarray, Any]:
        """The next staging buffer, once the copy that last used it is over."""
        if len(self._buffers) < STAGING_BUFFERS:
            self._buffers.append(pinned(self.device, STAGING_BYTES))
            self._events.append(self.device.event())
            return self._buffers[-1], self._events[-1]
        i, self._next = self._next, (self._next + 1) % STAGING_BUFFERS
        self._events[i].synchronize()
        return self._buffers[i], self._events[i]


def _pieces(n: int, step: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, n, step):
        yield begin, min(begin + step, n)
