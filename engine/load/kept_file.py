"""A file of repacked weights: made in place, mapped, and believed only when its sums are right.

    header, to a multiple of a page: magic, key, number of sums, title | sums | sha256 of all that
    data: the weights in the order and at the offsets that follow from their sizes

The key says everything the bytes depend on, so offsets are computed and not read. Every 256 KiB of
data have a sum, an 8-byte one of the words in it: a page that never reached the disk and a bit that
fell over are found at the speed of memory, where a cryptographic hash would take longer than to
repack. Files of somebody else's making are kept away by the directory's mode.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from gguflow.engine.dataclass import dataclass
from gguflow.engine.gguf import GgufError
from gguflow.engine.mapped import MappedBytes, guarded

MAGIC = b"gguflow repacked 1\n".ljust(32, b"\0")
CHUNK = 256 << 10  # data bytes that share a sum
ALIGNMENT = 64
_HEAD = struct.Struct("<32s32sQI")  # magic, key, sums, bytes of the title
_DIGEST = 32
_MOST_HEAD = 64 << 20


class KeptFileError(ValueError):
    """A file that is not what its name says."""


@dataclass(frozen=True)
class Plan:
    """Where weights of these sizes lie. offsets: of each in the data; n_data: bytes of all."""

    offsets: tuple[int, ...]
    n_data: int

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Plan:
        """One after the other, each on a cache line."""
        offsets, at = [], 0
        for size in sizes:
            offsets.append(at)
            at += -(-size // ALIGNMENT) * ALIGNMENT
        return cls(tuple(offsets), -(-max(at, 1) // 8) * 8)

    @property
    def n_sums(self) -> int:
        """Of chunks; the last one may be a part."""
        return -(-self.n_data // CHUNK)


def head_bytes(n_sums: int, title: bytes) -> int:
    """Bytes before the data."""
    n = _HEAD.size + len(title) + 8 * n_sums + _DIGEST
    return -(-n // mmap.PAGESIZE) * mmap.PAGESIZE


def _digest(head: bytes) -> bytes:
    from hashlib import sha256  # most models are too small for such a file

    return sha256(head).digest()


def sums(data: np.ndarray, n_threads: int) -> np.ndarray:
    """uint64 [chunks]: the sum of the 8-byte words of every chunk."""
    words = data.view(np.uint64)
    per = CHUNK // 8
    n_whole = words.size // per
    out = np.zeros(-(-words.size // per), np.uint64)
    if n_whole < out.size:
        out[-1] = words[n_whole * per :].sum(dtype=np.uint64)
    whole = words[: n_whole * per].reshape(n_whole, per)
    step = max(1, -(-n_whole // (4 * n_threads)))

    def part(a: int) -> None:
        np.add.reduce(whole[a : a + step], axis=1, out=out[a : min(a + step, n_whole)])

    from gguflow.engine.pool import Pool  # takes longer than small files

    with Pool(n_threads) as threads:  # numpy sums without the interpreter's lock
        list(threads.map(part, range(0, n_whole, step)))
    return out


class NewFile:
    """A file in the making: memory to pack into, which is the file's own.

    data: uint8 [plan.n_data]. fault: what became of it, None while it is whole. Raises OSError
    where there is no room on the disk, before anything is written to it: a mapped page without one
    has no memory.
    """

    def __init__(self, path: Path, plan: Plan, key: bytes, title: str) -> None:
        self._plan, self._key, self._title = plan, key, title.encode()[:4096]
        self._head = head_bytes(plan.n_sums, self._title)
        fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        try:
            _allocate(fd, self._head + plan.n_data)
            self._map = mmap.mmap(fd, self._head + plan.n_data)
        finally:
            os.close(fd)
        self.fault = guarded(self._map)
        _large_pages(self._map)
        self._all = np.frombuffer(self._map, np.uint8)
        self.data = self._all[self._head :]

    def room(self, i: int, size: int) -> np.ndarray:
        """Where weight `i` goes."""
        at = self._plan.offsets[i]
        return self.data[at : at + size]

    def finish(self, n_threads: int) -> None:
        """Write what says that the data is complete."""
        found = sums(self.data, n_threads).astype("<u8").tobytes()
        head = _HEAD.pack(MAGIC, self._key, self._plan.n_sums, len(self._title))
        head += self._title + found
        head += _digest(head)
        self._all[: len(head)] = np.frombuffer(head, np.uint8)


def map_file(
    path: Path, plan: Plan, key: bytes, n_threads: int
) -> tuple[np.ndarray, Callable[[], None]]:
    """The data of a finished file, mapped and read-only: uint8 [plan.n_data]; and what raises
    GgufError once it is no longer whole.

    Raises FileNotFoundError where there is none, KeptFileError for one that is damaged, has another
    key, or that others could have written.
    """
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(fd)
        check_private(status, str(path))
        if not stat.S_ISREG(status.st_mode) or status.st_size < _HEAD.size:
            raise KeptFileError(f"{path}: not a file of repacked weights")
        # Whoever makes use of a file gives it a new time: those used last stay longest.
        file = MappedBytes(fd, watches_time=False)
    finally:
        os.close(fd)
    _large_pages(file.data)
    whole = np.frombuffer(file.data, np.uint8)
    magic, found_key, n_sums, n_title = _HEAD.unpack(whole[: _HEAD.size].tobytes())
    n_head = _HEAD.size + n_title + 8 * n_sums
    if magic != MAGIC or found_key != key or n_sums != plan.n_sums or n_head > _MOST_HEAD:
        raise KeptFileError(f"{path}: weights of another model or layout")
    start = head_bytes(n_sums, b" " * n_title)
    if whole.size != start + plan.n_data:
        raise KeptFileError(f"{path}: {whole.size} bytes, expected {start + plan.n_data}")
    head = whole[:n_head].tobytes()
    if _digest(head) != whole[n_head : n_head + _DIGEST].tobytes():
        raise KeptFileError(f"{path}: the header is damaged")
    data = whole[start:]
    wrong = np.flatnonzero(
        sums(data, n_threads) != np.frombuffer(head[n_head - 8 * n_sums :], "<u8")
    )
    if wrong.size:
        raise KeptFileError(f"{path}: damaged at byte {start + int(wrong[0]) * CHUNK}")

    return data, lambda: refuse(path, file.fault)


def refuse(path: Path, find: Callable[[], str | None]) -> None:
    """Raises GgufError where something became of a file that is in use."""
    if fault := find():
        raise GgufError(path, "file", fault, "the repacked weights that were opened")


def title_of(path: Path) -> str:
    """What a file's maker called it; "" for one that is none."""
    with suppress(OSError), open(path, "rb") as f:
        head = f.read(_HEAD.size)
        if len(head) == _HEAD.size and head.startswith(MAGIC):
            return f.read(min(_HEAD.unpack(head)[3], 4096)).decode(errors="replace")
    return ""


def check_private(status: os.stat_result, path: str) -> None:
    """Raises KeptFileError for what others than this user may write."""
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise KeptFileError(f"{path}: others may write it")


def _allocate(fd: int, n: int) -> None:
    """Blocks of the disk for `n` bytes. Raises OSError without room."""
    if hasattr(os, "posix_fallocate"):
        try:
            return os.posix_fallocate(fd, 0, n)
        except OSError as e:
            if e.errno not in _UNKNOWN:
                raise
    zeros = bytes(1 << 20)
    for at in range(0, n, len(zeros)):
        os.pwrite(fd, zeros[: n - at], at)


_UNKNOWN = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}  # no fallocate on this file system


def _large_pages(m: mmap.mmap) -> None:
    """Ask for huge pages: file systems with large folios map them, the others need not know."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            m.madvise(mmap.MADV_HUGEPAGE)
