"""MappedFile: a regular file mapped read-only into memory."""

from __future__ import annotations

import contextlib
import mmap
import os

import numpy as np

from gguflow.engine.mapped import MappedBytes
from gguflow.engine.opened import file_kind

from .errors import GgufError


class MappedFile:
    """`bytes` is the whole file as a read-only uint8 array over the mapping; nothing is read yet.
    `status` is what the system said of it when it was opened.

    Arrays sliced from it keep the mapping alive: `close` lets go of it, and the memory is unmapped
    when the last of them is gone. What somebody else cuts off while the file is open reads as
    zeros; `check` says so.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # Non-blocking, so that opening a pipe nobody writes to does not wait for ever.
            flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
            fd = os.open(path, flags)
        except (OSError, ValueError) as e:
            found = (e.strerror or str(e)) if isinstance(e, OSError) else str(e)
            if isinstance(e, PermissionError) and os.path.isdir(path):  # Windows opens none
                found = "a directory"
            raise GgufError(path, "file", found[:1].lower() + found[1:], "a GGUF file") from None
        try:
            status = self.status = os.fstat(fd)
            if kind := file_kind(status.st_mode):
                raise GgufError(path, "file", kind, "a GGUF file")
            if not status.st_size:
                raise GgufError(path, "file", "an empty file", "a GGUF file")
            try:
                self._mapped = MappedBytes(fd)
            except (OSError, ValueError) as e:
                raise GgufError(path, "file", str(e), "a file that can be mapped") from None
        finally:
            os.close(fd)
        self.bytes = np.frombuffer(self._mapped.data, np.uint8)

    def check(self) -> None:
        """Raises GgufError for a file that another program has changed since it was opened."""
        if fault := self._mapped.fault():
            raise GgufError(self.path, "file", fault, "the file that was opened")

    def advise(self, offset: int, nbytes: int, advice: str) -> None:
        """Tell the system how bytes `offset` to `offset + nbytes` will be used.

        `willneed`: read them ahead. `dontneed`: take them out of resident memory (only pages that
        lie wholly inside the range; they are read again if touched). Does nothing where the system
        has no madvise.
        """
        page = mmap.PAGESIZE
        begin, end = offset, offset + nbytes
        if advice == "willneed":
            begin = begin // page * page
        elif advice == "dontneed":
            begin, end = -(-begin // page) * page, end // page * page
        else:
            raise ValueError(f"advice {advice!r}, expected 'willneed' or 'dontneed'")
        if begin < end and hasattr(self._mapped.data, "madvise"):
            with contextlib.suppress(OSError):  # pages that are locked in memory stay there
                self._mapped.data.madvise(
                    getattr(mmap, f"MADV_{advice.upper()}"), begin, end - begin
                )

    def close(self) -> None:
        """Unmap, now or when the last array over the mapping goes."""
        del self.bytes
        self._mapped.close()
