"""Memory that processes of one machine see alike and their devices reach: where stages that run at
the same time hand values over."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import NamedTuple

import numpy as np

from gguflow.engine.backends.base import Backend, Links
from gguflow.engine.backends.host import HostBuffer


class Crossing(NamedTuple):
    """Where another process finds it."""

    pid: int
    file: int  # its descriptor there
    nbytes: int


class CrossingMemory(HostBuffer):
    """Zeroed when it was made. name: for others, whose it is too once they have opened it."""

    def __init__(self, pages: np.ndarray, nbytes: int, name: Crossing) -> None:
        super().__init__(pages[:nbytes])
        self.name, self._pages = name, pages


def can_cross(device: Backend) -> bool:
    """Whether a device's programs can wait for those of another process."""
    links = device.links
    has = links is not None and links.alloc_pinned is not None and links.adopt is not None
    return has and hasattr(os, "memfd_create")


def crossing_links(device: Backend, name: Crossing | None, card: str = "") -> Links:
    """A stage of another process as somebody the device can meet. name: of the memory for it; new
    memory for None. card: the other's."""

    def alloc(nbytes: int) -> HostBuffer:
        return _new(nbytes, device) if name is None else _opened(name, nbytes, device)

    return Links(alloc, card=card)


def _new(nbytes: int, device: Backend) -> CrossingMemory:
    """Raises OSError where there is none."""
    file = os.memfd_create("gguflow", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(file, 0, _whole(nbytes))  # an error now and not a signal later
        pages = _adopted(file, nbytes, device)
    except OSError:
        os.close(file)
        raise
    weakref.finalize(pages, os.close, file)
    return CrossingMemory(pages, nbytes, Crossing(os.getpid(), file, nbytes))


def _opened(name: Crossing, nbytes: int, device: Backend) -> CrossingMemory:
    """Raises OSError for memory that is gone, ValueError for another plan's."""
    if nbytes != name.nbytes:
        raise ValueError(f"expected {nbytes} bytes to meet in, not {name.nbytes}")
    file = os.open(f"/proc/{name.pid}/fd/{name.file}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return CrossingMemory(_adopted(file, nbytes, device), nbytes, name)
    finally:
        os.close(file)


def _adopted(file: int, nbytes: int, device: Backend) -> np.ndarray:
    pages = np.frombuffer(mmap.mmap(file, _whole(nbytes)), np.uint8)
    assert device.links is not None and device.links.adopt is not None
    device.links.adopt(pages)
    return pages


def _whole(nbytes: int) -> int:
    """Bytes of whole pages."""
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
