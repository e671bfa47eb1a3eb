"""Files mapped into memory, and what becomes of them when another program changes them.

Reading a mapping past the end of a file that was cut short ends a process by SIGBUS. The library of
`kernels/guard` puts zeros there instead and counts: whoever computed with a mapping asks it for its
`fault` afterwards, and drops what came of it. Other libraries take the signal for themselves, so it
is taken back by `hold`, with every new mapping and whenever one is asked for its fault.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import weakref
from collections.abc import Callable
from functools import cache

from gguflow.engine.found import file_of

LOST = "one whose bytes could not be read: cut short, or on a failing disk"


class MappedBytes:
    """A file opened for reading, mapped whole and guarded. The file must not be empty.

    data: the mapping. It lives as long as anything looks at it. Raises OSError or ValueError where
    it cannot be mapped, MemoryError for want of address space.
    """

    def __init__(self, fd: int, watches_time: bool = True) -> None:
        """fd: stays the caller's. watches_time: whether a new time of writing is a fault too."""
        self._watches_time = watches_time
        self._fd = os.dup(fd)
        try:
            # Asked before mapping: what happens in between is found as well.
            self._was = _identity(os.fstat(self._fd))
            self.data = mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(self._fd)
            raise
        self._place = _guarded(self.data)
        self._end = weakref.finalize(self.data, _give_up, self._place, self._fd)

    def fault(self) -> str | None:
        """What became of the file since it was mapped, None while it is what it was."""
        if not self._end.alive:
            return None
        hold()
        guard = _guard()
        if guard is not None and guard.gf_guard_lost(self._place):
            return LOST
        now = _identity(os.fstat(self._fd))
        if now[0] < self._was[0]:
            return f"one cut short to {now[0]} bytes while it is in use"
        same = now == self._was if self._watches_time else now[0] == self._was[0]
        return None if same else "one that was written to while it is in use"

    def close(self) -> None:
        """Unmap, now or when the last array over the mapping goes."""
        try:
            self.data.close()
        except BufferError:  # arrays still look at it
            return
        self._end()


def guarded(data: mmap.mmap) -> Callable[[], str | None]:
    """Guard a mapping that somebody else made and writes to; what became of it, as `fault` says it
    of bytes that could not be read."""
    guard, place = _guard(), _guarded(data, is_written=True)
    if guard is not None:
        weakref.finalize(data, guard.gf_guard_remove, place)

    def fault() -> str | None:
        hold()
        return LOST if guard is not None and guard.gf_guard_lost(place) else None

    return fault


def hold() -> None:
    """Take the signal back, if something else in this process has taken it. To be called before
    mappings are read that nobody has looked at for a while; well below a microsecond."""
    if (guard := _guard()) is not None:
        guard.gf_guard_install()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def n_lost() -> int:
    """How many mappings lost bytes so far. Costs nothing to ask."""
    lost = _count()
    return 0 if lost is None else int(lost.value)


def _guarded(data: mmap.mmap, is_written: bool = False) -> int:
    guard = _guard()
    if guard is None:
        return -1
    # No array or ctypes object may keep an address: it would keep the mapping too.
    import numpy as np

    address = np.frombuffer(data, np.uint8).ctypes.data
    size = ctypes.c_int64(len(data))
    return int(guard.gf_guard_add(ctypes.c_void_p(address), size, ctypes.c_int32(is_written)))


def _give_up(place: int, fd: int) -> None:
    guard = _guard()
    if guard is not None:
        guard.gf_guard_remove(place)
    os.close(fd)


@cache
def _guard() -> ctypes.CDLL | None:
    """The library; None where it was not built."""
    suffix = ".dll" if platform.system() == "Windows" else ".so"
    path = file_of("gguflow.kernels.cpu", "lib", f"libgguflow_guard{suffix}")
    if not path.is_file():
        return None
    return ctypes.CDLL(str(path))


@cache
def _count() -> ctypes.c_int32 | None:
    guard = _guard()
    return None if guard is None else ctypes.c_int32.in_dll(guard, "gf_guard_n_lost")
