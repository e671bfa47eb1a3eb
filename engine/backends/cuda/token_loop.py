"""Decode steps that follow each other on the device; the host reads their tokens behind."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from gguflow.kernels.cuda.advance import advance

from .device import CudaDevice
from .errors import CudaError
from .memory import CudaBuffer, pinned
from .modules import BoundGemm, BoundLaunch

if TYPE_CHECKING:
    from .backend import CudaBackend

CAPACITY = 64  # entries of the ring, a power of two
# The device is ahead, so the host need not learn of a token at once: it leaves the processor to
# others meanwhile.
PAUSE_S = 20e-6
CHECK_S = 5e-3  # from one look at the device's state to the next


class CudaTokenLoop:
    """A step's graph without the host: it ends by making its token the next step's input and by
    storing it in a ring in pinned memory, with its position."""

    def __init__(
        self,
        backend: CudaBackend,
        places: Mapping[str, tuple[CudaBuffer, int]],
        n_history: int,
        begin: Callable[[], None],
        capture: Callable[[BoundLaunch | BoundGemm], Any],
    ) -> None:
        self._device = backend.device
        self._begin, self._capture = begin, capture
        self._ring = pinned(self._device, 8 * CAPACITY).view(np.uint64)
        at = {name: buffer.address + offset for name, (buffer, offset) in places.items()}
        launch = advance(
            at["token"], at["tokens"], at["pos"], at["sampler.rng"], at["sampler.history"],
            n_history, self._ring.ctypes.data, CAPACITY,
        )  # fmt: skip
        backend.modules.prepare([launch.kernel])
        self._end = backend.modules.bind(launch)
        self._graph: Any = None
        # No __del__: in a cycle of garbage the stream might be gone before it.
        weakref.finalize(self, _drain, self._device, self._ring)

    def start(self) -> None:
        """Take the inputs as the host has written them; what was launched before is over then."""
        device = self._device
        device.use()
        device.synchronize()
        self._ring[:] = 0
        self._begin()
        if self._graph is None:
            self._graph = self._capture(self._end)

    def launch(self) -> None:
        """Enqueue one more step."""
        self._device.use()
        self._graph.launch(self._device.stream)

    def wait(self, pos: int) -> int:
        """The token that belongs at a position, once it is there. Raises CudaError when the device
        failed before."""
        ring, slot = self._ring, pos % CAPACITY
        look = time.perf_counter() + CHECK_S
        while int(entry := ring[slot]) >> 32 != pos:
            if time.perf_counter() > look:
                self._device.use()
                if self._device.is_idle() and int(ring[slot]) >> 32 != pos:
                    raise CudaError(f"{self._device.name}: a step ended without its token")
                look = time.perf_counter() + CHECK_S
            time.sleep(PAUSE_S)
        return int(entry) & 0xFFFFFFFF


def _drain(device: CudaDevice, ring: np.ndarray) -> None:
    """Steps on their way still write to the ring, which is kept until here."""
    with suppress(Exception):
        device.use()
        device.synchronize()
