"""Weights that stay in memory: the system may not take their pages away, as it does with pages of
files, and with others where there is swap, when memory is short."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable, Iterator

if sys.platform == "win32":
    resource = None
else:
    import resource

_AT_ONCE = 64 << 20  # bytes; pages are read from the disk meanwhile, and Ctrl-C is to be heeded


def lock(pieces: Iterable[tuple[int, int]]) -> str | None:
    """Lock memory at so many (address, bytes), in turn, as far as the system allows: what was
    locked by then stays so, until its mapping goes. Returns a line on what is not locked, None
    where all is."""
    ranges = list(_pages(pieces))
    wanted, locked = sum(end - begin for begin, end in ranges), 0
    for begin, end in ranges:
        for at in range(begin, end, _AT_ONCE):
            n = min(_AT_ONCE, end - at)
            if why := _lock(at, n):
                return (
                    f"`mlock`: {_size(locked)} of {_size(wanted)} of weights are locked in memory, "
                    f"the rest is not: {why}"
                )
            locked += n
    return None


def _size(n: int) -> str:
    return f"{n / 2**20:.1f} MiB" if n >= 1 << 20 else f"{n >> 10} KiB"


def _pages(pieces: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The whole pages that pieces lie in, each once: first and end, in order. Weights of a file
    lie side by side and become one range."""
    page = mmap.PAGESIZE
    begin = end = 0
    for address, n in sorted(p for p in pieces if p[1]):
        first, last = address // page * page, -(-(address + n) // page) * page
        if first <= end and end:
            end = max(end, last)
            continue
        if end:
            yield begin, end
        begin, end = first, last
    if end:
        yield begin, end


def _lock(address: int, n: int) -> str | None:
    """Lock whole pages; why the system does not, None where it did."""
    if sys.platform == "win32":
        return _lock_on_windows(address, n)
    try:
        mlock = ctypes.CDLL(None, use_errno=True).mlock
    except AttributeError:
        return "this system cannot"
    mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return _limit(ctypes.get_errno()) if mlock(address, n) else None


def _limit(errno: int) -> str:
    """What the system said, with the limit that it keeps to."""
    import os

    assert resource is not None
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY:
        return os.strerror(errno)
    return (
        f"RLIMIT_MEMLOCK is {_size(limit)}; raise it by `ulimit -l unlimited`, "
        "LimitMEMLOCK=infinity of a service, or memlock in /etc/security/limits.conf"
    )


def _lock_on_windows(address: int, n: int) -> str | None:
    """A process may lock what its working set holds at least, so that is raised first."""
    windll = getattr(ctypes, "windll")  # noqa: B009  # unknown to mypy elsewhere
    kernel, size = windll.kernel32, ctypes.c_size_t
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    process = ctypes.c_void_p(kernel.GetCurrentProcess())
    least, most = size(), size()
    kernel.GetProcessWorkingSetSize(process, ctypes.byref(least), ctypes.byref(most))
    raised = size(least.value + n), size(most.value + n)
    if not kernel.SetProcessWorkingSetSize(process, *raised):
        return "the system allows no larger working set, SetProcessWorkingSetSize failed"
    if not kernel.VirtualLock(ctypes.c_void_p(address), size(n)):
        return "VirtualLock failed"
    return None
