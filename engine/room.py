"""What memory the process may still take, asked before it is taken.

A limit is the system's own (`setrlimit`, what `ulimit -d` and `-v` set), so that it holds for
everything in the process: what is asked for beyond it is refused, and nothing else is.
"""

from __future__ import annotations

import mmap
import sys

if sys.platform == "win32":
    resource = None
else:
    import resource

_PROBED = 1 << 20  # bytes; less is not worth asking for


def limit_memory(n_bytes: int) -> None:
    """From now on the process takes no more than so many bytes of its own: files that are mapped
    and memory of devices do not count. Raises OSError where the system has no such limit, or a
    lower one that cannot be raised."""
    if resource is None:
        raise OSError("this system has no limit of a process's memory")
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY and n_bytes > most:
        raise OSError(f"the system allows {most} bytes")
    resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, most))


def memory_limit() -> int | None:
    """Bytes of its own that the process may take in all; None where nothing says so."""
    if resource is None:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if limit == resource.RLIM_INFINITY else limit


def own_memory() -> int:
    """Bytes of its own that the process has by now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as f:
            data = int(f.read().split()[5])
    except OSError:
        return 0
    return data * mmap.PAGESIZE


def check_room(n_bytes: int, what: str) -> None:
    """Raises MemoryError when so many bytes cannot be had: before a library is asked for them that
    ends the process where it gets none."""
    if n_bytes < _PROBED:
        return
    try:
        mmap.mmap(-1, n_bytes).close()
    except (OSError, ValueError, OverflowError):
        raise MemoryError(f"no memory for {what}: it may take {n_bytes} bytes") from None
