"""Files that appear under their names whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .opened import open_file

PART = ".part"  # how the names of unfinished files end
PATIENCE_S = 1.0  # with others who have the target open, on Windows
LEFT_S = 60.0  # since a part was written to that nobody goes on with, on Windows


MOST_READ = 64 << 20  # bytes of a file that is taken into memory


def read_file(path: str | os.PathLike[str], most: int = MOST_READ) -> bytes:
    """A file's bytes. Raises OSError, also for one that is longer, or that never ends, and for a
    pipe that nobody writes to."""
    with open_file(path) as f:
        data = f.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EINVAL, f"more than {most >> 20} MiB", str(path))
    return data


@contextmanager
def whole_file(
    path: str | os.PathLike[str], durable: bool = True, mode: int | None = None
) -> Iterator[Path]:
    """The name of an empty file to write instead of `path`, which takes its place at the end.

    It lies beside the target, under a name that nobody can have prepared. At the end it is on the
    disk before it gets its name; a file that was there before gives it its mode. Should the body
    raise, or the process be killed, `path` is as it was; what a killed one left behind is removed
    when the same path is written again. A symbolic link is followed. durable: else it need not
    outlive a power cut, which spares waiting for the disk. mode: instead. Raises OSError, also for
    a target that is there and no regular file: a device or a pipe must not be replaced.
    """
    target = Path(os.path.realpath(path))
    mode = _mode(target) if mode is None else mode
    _remove_leftovers(target)
    try:
        part, fd = _new_part(target)
    except OSError as e:  # of the file that was asked for, not of one that nobody knows
        raise OSError(e.errno, e.strerror, str(path)) from None
    try:
        yield part
        # Through the same file: the body may have opened it by its name, but not replaced it.
        if durable:
            os.fsync(fd)
        if sys.platform != "win32":
            os.fchmod(fd, mode)
        else:
            os.close(fd)
            fd = -1
        _replace(part, target)
        if durable:
            _sync_folder(target.parent)
    finally:
        if fd >= 0:
            os.close(fd)
        with suppress(OSError):
            os.unlink(part)


def _replace(part: Path, target: Path) -> None:
    """Windows refuses while anybody has the target open. Another writer, or what looks for viruses,
    has it for a moment only."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return os.replace(part, target)
        except PermissionError:
            if sys.platform != "win32" or time.monotonic() > until:
                raise
        time.sleep(0.01)


def _new_part(target: Path) -> tuple[Path, int]:
    """A new file beside the target that is locked, and its descriptor."""
    while True:
        part = target.with_name(f".{target.name}.{os.urandom(8).hex()}{PART}")
        fd = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), 0o600)
        _lock(fd, wait=True)
        # Before that another writer may have taken it for a leftover.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(part)):
                return part, fd
        os.close(fd)


def _mode(target: Path) -> int:
    """The mode of the file that is there, or what the process gives new ones. Raises OSError for
    what is there and no regular file."""
    try:
        mode = os.stat(target).st_mode
        if not stat.S_ISREG(mode):
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, "Is a directory", str(target))
            raise OSError(errno.EINVAL, "not a regular file", str(target))
        return stat.S_IMODE(mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _remove_leftovers(target: Path) -> None:
    """Parts of this target that no process is writing: their locks are free."""
    head = f".{target.name}."
    with suppress(OSError):
        for name in os.listdir(target.parent):
            middle = name[len(head) : -len(PART)]
            if name.startswith(head) and name.endswith(PART) and len(middle) == 16:
                remove_part(target.with_name(name))


def remove_part(part: Path) -> bool:
    """Remove an unfinished file that no process is writing; whether it is gone."""
    try:
        _remove_if_free(part)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _remove_if_free(part: Path) -> None:
    if sys.platform == "win32":
        # What is open cannot be removed; what is not may be about to get its name.
        if time.time() - os.stat(part).st_mtime < LEFT_S:
            raise BlockingIOError(errno.EAGAIN, "written just now", str(part))
        os.unlink(part)
        return
    fd = os.open(part, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        _lock(fd, wait=False)
        os.unlink(part)
    finally:
        os.close(fd)


def _lock(fd: int, wait: bool) -> None:
    """Held until the file is closed or the process ends. wait: else OSError while another has it.
    Windows needs none: there a file that is open cannot be removed."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _sync_folder(folder: Path) -> None:
    # A file system that cannot sync folders has nothing to sync.
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def private_folder(path: str | os.PathLike[str]) -> Path:
    """A folder for what this user keeps and later takes for its own: made with mode 0700, or given
    it. Raises PermissionError for one that another user may have put things into: it belongs to
    one, or lies where others may replace it."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if sys.platform == "win32":  # users' folders are their own there
        return folder
    me, real = os.getuid(), folder.resolve()
    if (owner := os.stat(real).st_uid) != me:
        raise PermissionError(f"{real}: belongs to user {owner}, not to {me}")
    above = os.stat(real.parent)
    open_to_all = above.st_mode & 0o002 and not above.st_mode & stat.S_ISVTX
    if above.st_uid not in (me, 0) or open_to_all:
        raise PermissionError(f"{real.parent}: other users may replace what is in it")
    if stat.S_IMODE(os.stat(real).st_mode) != 0o700:
        os.chmod(real, 0o700)
    return folder
