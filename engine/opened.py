"""Files opened for reading, whatever a name may stand for: a pipe is not waited for without end."""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import time
from typing import BinaryIO

NONBLOCKING = getattr(os, "O_NONBLOCK", 0)  # not on Windows, whose pipes are no files
WRITER_S = 5.0  # a pipe's writer may come so much later
_POLL_S = 0.02
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def file_kind(mode: int) -> str | None:
    """What a file that is not a regular one is called; None for a regular file."""
    return next((name for test, name in _KINDS if test(mode)), None)


def open_file(path: str | os.PathLike[str], regular: bool = False) -> BinaryIO:
    """A file opened for reading: to be asked for so many bytes, or for lines.

    regular: what is read twice, or mapped, can be nothing else. Raises OSError, also for a pipe
    that nobody writes to, when its first byte is asked for.
    """
    # Non-blocking, or opening such a pipe would wait for ever.
    flags = os.O_RDONLY | NONBLOCKING | getattr(os, "O_BINARY", 0)
    fd = os.open(path, flags)
    try:
        mode = os.fstat(fd).st_mode
        kind = file_kind(mode)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        if regular and kind:
            raise OSError(errno.EINVAL, f"{kind}, expected a regular file", str(path))
        if stat.S_ISFIFO(mode):
            return io.BufferedReader(_Pipe(fd, str(path)))
        if NONBLOCKING:
            os.set_blocking(fd, True)
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


class _Pipe(io.FileIO):
    """A pipe's end that does not block. Once somebody has it open for writing, what he is slow to
    write is waited for."""

    def __init__(self, fd: int, path: str) -> None:
        super().__init__(fd, "rb")
        self._path = path
        self._until = time.monotonic() + WRITER_S
        self._has_writer = False

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while True:
            n = super().readinto(buffer)
            if n or (n == 0 and self._has_writer):
                self._has_writer = True
                return n
            if n is None:  # there is a writer, and nothing to read yet
                self._has_writer = True
                select.select([self], [], [])
                continue
            if time.monotonic() > self._until:
                raise OSError(errno.EINVAL, "a pipe that nobody writes to", self._path)
            time.sleep(_POLL_S)
