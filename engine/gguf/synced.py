"""A large file goes to the disk while it is written.

Nothing ends a sync that has begun: one of a whole model at the end would keep a process that was
told to leave for as long as the disk takes.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from types import TracebackType
from typing import IO

from gguflow.engine.pool import Pool

# Bytes: so much is on its way to the disk, and as much again is written meanwhile.
AT_ONCE = 32 << 20


class SyncedMeanwhile:
    """Around the writing of a file, whose writer says how much it wrote. Raises OSError for a disk
    that fails, if only at the end: the system may tell of it once, and here was who asked."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._thread = Pool(1)  # which starts with the first sync
        self._last: Future[None] | None = None
        self._n_bytes = 0

    def __enter__(self) -> SyncedMeanwhile:
        return self

    def wrote(self, n_bytes: int) -> None:
        """More bytes. Waits while the disk is behind."""
        self._n_bytes += n_bytes
        if self._n_bytes < AT_ONCE:
            return
        self._n_bytes = 0
        if self._last is not None:
            self._last.result()
        self._last = self._thread.submit(os.fsync, self._file.fileno())

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._thread.shutdown()
        if kind is None and self._last is not None:
            self._last.result()
