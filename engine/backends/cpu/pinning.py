"""Which process pins its threads: two that did would share the same processors."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

NAME = "gguflow-pinned-{}.lock"


def may_pin() -> bool:
    """Whether this process is the first that asks, of those that are there; a lock that ends with
    it says so. Where there are no such locks, and in a process made by fork, it is not."""
    return _taken_by() == os.getpid()


@lru_cache(maxsize=1)
def _taken_by() -> int:
    """The process that has the lock, if it is this one or its parent; else 0."""
    try:
        import fcntl
    except ImportError:  # Windows, where threads are not pinned
        return 0
    # Where `tempfile` would have it, which takes longer to import than all this.
    path = Path(os.environ.get("TMPDIR") or "/tmp") / NAME.format(os.getuid())
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return 0
    return os.getpid()  # fd stays open as long as the process
