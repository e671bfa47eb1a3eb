"""Host memory: page-aligned anonymous buffers, and views of files that are mapped elsewhere."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

HUGE_PAGE = 2 << 20
# Python maps anonymous memory shared by default, which gets no transparent huge pages.
PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


class HostBuffer:
    """Host bytes with a stable address. Fresh pages are zero and cost nothing until used."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.nbytes = array.nbytes
        self.address = array.ctypes.data

    @classmethod
    def zeros(cls, nbytes: int) -> HostBuffer:
        """Raises MemoryError with the figure when the machine refuses."""
        try:
            memory = mmap.mmap(-1, max(nbytes, 1), **PRIVATE)
        except (OSError, ValueError, OverflowError) as e:
            raise MemoryError(f"cannot allocate {nbytes} bytes of host memory: {e}") from None
        if nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            # Streaming gigabytes of weights through 4 KiB pages costs a tenth of the bandwidth.
            with contextlib.suppress(OSError):  # a kernel without transparent huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        return cls(np.frombuffer(memory, np.uint8)[:nbytes])

    def host(self) -> np.ndarray:
        return self.array

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        return self.array[offset : offset + nbytes]

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.array[offset : offset + raw.nbytes] = raw


class HostSlab:
    """Hands out pieces of large buffers, so that small matrices lie in huge pages too."""

    def __init__(self, chunk: int = 64 << 20) -> None:
        self._chunk = chunk
        self._free = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> HostBuffer:
        """A buffer of `nbytes`, aligned to a cache line. Never given back."""
        padded = -(-nbytes // 64) * 64
        if padded > self._free.nbytes:
            # Pages that are never touched cost nothing, so the unused end of a chunk is free.
            self._free = HostBuffer.zeros(max(padded, self._chunk)).array
        piece, self._free = self._free[:nbytes], self._free[padded:]
        return HostBuffer(piece)
