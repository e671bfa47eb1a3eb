"""Decode steps that follow each other on the device; the host reads their tokens behind."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from gguflow.engine.backends.base import RoundMemory
from gguflow.engine.graph import Tensor
from gguflow.kernels.cuda.accept import RoundPlaces, accept
from gguflow.kernels.cuda.advance import CacheRows, StepInputs, advance
from gguflow.kernels.cuda.launch import Launch

from .device import CudaDevice
from .errors import CudaError
from .memory import CudaBuffer, pinned
from .modules import BoundGemm, BoundLaunch

if TYPE_CHECKING:
    from .backend import CudaBackend

CAPACITY = 64  # steps in the ring, a power of two
# The device is ahead, so the host need not learn of a token at once: it leaves the processor to
# others meanwhile.
PAUSE_S = 20e-6
CHECK_S = 5e-3  # from one look at the device's state to the next


def step_inputs(places: Mapping[str, tuple[Tensor, int]], spare: int) -> StepInputs:
    """Where a step's inputs lie; places: tensor and address by name. Those that the device has not,
    as another one samples, are at `spare`, an address of 16 bytes a row."""

    def address(name: str) -> int:
        return places[name][1] if name in places else spare

    # A recurrent layer's row is its sequence's slot, which stays.
    groups = [name.removeprefix("table.") for name in places if name.startswith("table.")]
    tables = [places[f"table.{g}"][0] for g in groups]
    return StepInputs(
        n=places["pos"][0].size,
        token=address("token"),
        tokens=address("tokens"),
        pos=address("pos"),
        seq=address("seq"),
        rng=address("sampler.rng"),
        history=address("sampler.history"),
        n_history=places["sampler.history"][0].shape[1] if "sampler.history" in places else 0,
        n_seqs=tables[0].shape[0] if tables else 0,
        groups=[
            CacheRows(address(f"rows.{g}"), address(f"table.{g}"), t.shape[1])
            for g, t in zip(groups, tables, strict=True)
        ],
    )


def _of_rounds(at: StepInputs, keep: RoundMemory, to: tuple[int, int, int]) -> list[Launch]:
    """The end of a round, and what makes the first one's inputs."""
    prepared = 0 if keep.prepared is None else keep.prepared.address
    places = RoundPlaces(keep.lines.address, keep.texts.address, prepared, keep.capacity)
    return [accept(at, places, *to, begins) for begins in (False, True)]


class CudaTokenLoop:
    """A step's graph without the host: it ends by making its tokens the next step's input and by
    storing them in a ring in pinned memory, with the step's number.

    places: tensor and address of the plan's inputs by name, and of the sampled tokens as `token`. A
    device that has no such tokens moves its positions and the rows it writes on, and that is all;
    what it puts into its ring says nothing. keep: what steps on their way may still write to.
    rounds: what steps that check guesses keep, see `RoundMemory`.
    """

    def __init__(
        self,
        backend: CudaBackend,
        places: Mapping[str, tuple[Tensor, int]],
        begin: Callable[[], None],
        capture: Callable[[BoundLaunch | BoundGemm], Any],
        keep: object = None,
        rounds: RoundMemory | None = None,
    ) -> None:
        self._device = device = backend.device
        self._begin, self._capture = begin, capture
        self._spare = CudaBuffer(device, 16 * places["pos"][0].size)
        at = step_inputs(places, self._spare.address)
        self._ring = pinned(device, 8 * CAPACITY * at.n).view(np.uint64).reshape(CAPACITY, at.n)
        self._steps = CudaBuffer(device, 4 * at.n)
        to = self._steps.address, self._ring.ctypes.data, CAPACITY
        made = [advance(at, *to)] if rounds is None else _of_rounds(at, rounds, to)
        backend.modules.prepare([made[0].kernel])
        self._end, *self._first = [backend.modules.bind(launch) for launch in made]
        self._graph: Any = None
        # No __del__: in a cycle of garbage the stream might be gone before it.
        weakref.finalize(self, _drain, device, self._ring, self._steps, self._spare, keep, rounds)

    def start(self) -> None:
        """Take the inputs as the host has written them; what was launched before is over then.
        Steps are counted from 1 again. Raises CudaError, as `launch` does, for what cannot be put
        into the stream."""
        device = self._device
        with device.told():
            device.use()
            device.synchronize()
            self._ring[:] = 0
            steps = self._steps
            device.runtime.memsetAsync(steps.address, 0, steps.nbytes, device.stream.ptr)
            self._begin()
            for launch in self._first:
                launch.issue()
            if self._graph is None:
                self._graph = self._capture(self._end)

    def launch(self) -> None:
        """Enqueue one more step."""
        with self._device.told():
            self._device.use()
            self._graph.launch(self._device.stream)

    def wait(self, step: int) -> np.ndarray:
        """The tokens of a step, int32 [n], once they are there; -1 for padding. Raises CudaError
        when the device failed before."""
        ring = self._ring[step % CAPACITY]
        look = time.perf_counter() + CHECK_S
        while not self._is_there(step):
            if time.perf_counter() > look:
                self._device.use()
                if self._device.is_idle() and not self._is_there(step):
                    raise CudaError(f"{self._device.name}: a step ended without its tokens")
                look = time.perf_counter() + CHECK_S
            time.sleep(PAUSE_S)
        return ring.astype(np.uint32).view(np.int32)

    def _is_there(self, step: int) -> bool:
        ring = self._ring[step % CAPACITY]
        return int(ring[-1]) >> 32 == step and bool((ring >> np.uint64(32) == step).all())


def _drain(device: CudaDevice, *kept: object) -> None:
    """Steps on their way still write to what is kept until here."""
    with suppress(Exception):
        device.use()
        device.synchronize()
