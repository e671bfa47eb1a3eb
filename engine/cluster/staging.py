"""What values of a device pass through on their way to another process, and from there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gguflow.engine.backends.base import Backend
from gguflow.engine.backends.host import HostBuffer

_ALIGN = 256


class Staging:
    """Pinned memory, as large as the largest call needs: of other memory a driver copies values to
    pinned memory of its own first, and fresh arrays have pages that are not there yet."""

    def __init__(self, device: Backend) -> None:
        self._alloc = device.links.alloc_pinned if device.links is not None else None
        self._memory: HostBuffer | None = None

    def rooms(self, sizes: Sequence[int]) -> list[np.ndarray | None]:
        """Arrays of so many bytes, until the next call; None where the host reaches the device's
        memory anyway."""
        if self._alloc is None:
            return [None] * len(sizes)
        ends = np.cumsum([-(-n // _ALIGN) * _ALIGN for n in sizes], dtype=np.int64)
        nbytes = int(ends[-1]) if len(ends) else 0
        if self._memory is None or self._memory.nbytes < nbytes:
            self._memory = self._alloc(nbytes)
        starts = [0, *map(int, ends[:-1])]
        return [self._memory.array[at : at + n] for at, n in zip(starts, sizes, strict=False)]
