"""Host memory: page-aligned anonymous buffers, views of files that are mapped elsewhere, and the
values of tensors in such bytes."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Mapping

import numpy as np

from gguflow.engine.graph import Tensor
from gguflow.engine.quants import decode, encode

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

    def read(self, offset: int, nbytes: int, into: np.ndarray | None = None) -> np.ndarray:
        return self.array[offset : offset + nbytes]

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.array[offset : offset + raw.nbytes] = raw

    def move(self, to: int, source: int, nbytes: int) -> None:
        self.array[to : to + nbytes] = self.array[source : source + nbytes]


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


# -- tensors in bytes ------------------------------------------------------------------------------

Buffers = Mapping[Tensor, np.ndarray]  # owner -> its bytes, uint8 and flat


def window(t: Tensor, buffers: Buffers) -> np.ndarray:
    """`t`'s memory as an array of its storage type, for quantized types of whole blocks.

    Raises ValueError when `t` reaches outside its owner's buffer.
    """
    block = t.dtype.block
    shape = (*t.shape[:-1], t.shape[-1] // block) if block > 1 else t.shape
    unit = np.dtype((np.void, t.dtype.nbytes)) if block > 1 else t.dtype.storage
    if t.size == 0:  # its strides reach nowhere, whatever numpy thinks of them
        return np.empty(shape, unit)
    try:
        return np.ndarray(shape, unit, buffers[t.owner], t.view_offset, t.strides)
    except (TypeError, ValueError) as e:
        size = buffers[t.owner].nbytes
        raise ValueError(f"{t.name}: outside the {size} bytes of {t.owner.name}: {e}") from None


def read(t: Tensor, buffers: Buffers) -> np.ndarray:
    """`t`'s values: float32 for float and quantized types, integers as they are."""
    return decode(t.dtype, window(t, buffers), t.shape)


def write(t: Tensor, buffers: Buffers, values: np.ndarray, rows: np.ndarray | None = None) -> None:
    """Encode `values` into `t`'s memory, or only these rows of its first axis."""
    target = window(t, buffers)
    if rows is not None:
        if not len(rows):
            return
        values = values[rows]
    raw = encode(t.dtype, values).reshape(-1).view(target.dtype)
    if rows is None:
        target[...] = raw.reshape(target.shape)
    else:
        target[rows] = raw.reshape(len(rows), *target.shape[1:])
