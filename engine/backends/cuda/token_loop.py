"""Decode steps that follow each other on the device; the host reads their tokens behind."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gguflow.engine.backends.base import RoundMemory
from gguflow.engine.graph import Tensor
from gguflow.kernels.cuda.accept import RoundPlaces, accept
from gguflow.kernels.cuda.advance import CacheRows, StepInputs, advance
from gguflow.kernels.cuda.draft import draft_first, draft_next
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


@dataclass(frozen=True)
class LoopStep:
    """What a loop needs of a program: tensor and address of the plan's inputs by name, and of the
    sampled tokens as `token`; what brings the inputs; and what makes a graph of its launches and
    some behind them."""

    places: Mapping[str, tuple[Tensor, int]]
    begin: Callable[[], None]
    capture: Callable[[Sequence[BoundLaunch | BoundGemm]], Any]


@dataclass(frozen=True)
class Ends:
    """Launches: behind a step, behind each of a draft's, and before the first step."""

    step: list[Launch]
    drafts: list[list[Launch]]
    first: list[Launch]


def _of_rounds(
    at: StepInputs, drafts: Sequence[StepInputs], keep: RoundMemory, to: tuple[int, int, int]
) -> Ends:
    prepared = 0 if keep.prepared is None else keep.prepared.address
    places = RoundPlaces(
        keep.lines.address, keep.texts.address, prepared, keep.capacity, bool(drafts)
    )
    end, begins = (accept(at, places, *to, x) for x in (False, True))
    if not drafts:
        return Ends([end], [], [begins])
    two, one = drafts
    made = draft_first(two, at, places)
    next_ones = [[draft_next(x.token, n, one, at, places)] for x, n in ((two, 2), (one, 1))]
    return Ends([end, made], next_ones, [begins, made])


class CudaTokenLoop:
    """A step's graph without the host: it ends by making its tokens the next step's input and by
    storing them in a ring in pinned memory, with the step's number.

    step: a device that has no sampled tokens moves its positions and the rows it writes on, and
    that is all; what it puts into its ring says nothing. keep: what steps on their way may still
    write to. rounds: what steps that check guesses keep, see `RoundMemory`. drafts: of a draft that
    guesses, see `Program.round_loop`. depth: how many steps of it come before each step.
    """

    def __init__(
        self,
        backend: CudaBackend,
        step: LoopStep,
        keep: object = None,
        rounds: RoundMemory | None = None,
        drafts: Sequence[LoopStep] = (),
    ) -> None:
        self._device = device = backend.device
        self._step, self._drafts, self.depth = step, drafts, 0
        self._spares = [CudaBuffer(device, 16 * s.places["pos"][0].size) for s in (step, *drafts)]
        at, *guess = (
            step_inputs(s.places, spare.address)
            for s, spare in zip((step, *drafts), self._spares, strict=True)
        )
        self._ring = pinned(device, 8 * CAPACITY * at.n).view(np.uint64).reshape(CAPACITY, at.n)
        self._steps = CudaBuffer(device, 4 * at.n)
        to = self._steps.address, self._ring.ctypes.data, CAPACITY
        if rounds is None:
            ends = Ends([advance(at, *to)], [], [])
        else:
            ends = _of_rounds(at, guess, rounds, to)
        backend.modules.prepare(x.kernel for part in (ends.step, *ends.drafts) for x in part)
        bind = backend.modules.bind
        self._ends = [[bind(x) for x in part] for part in (ends.step, *ends.drafts)]
        self._first = [bind(x) for x in ends.first]
        self._graphs: list[Any] = []  # of the step, and of the draft's
        # No __del__: in a cycle of garbage the stream might be gone before it.
        kept = self._ring, self._steps, self._spares, keep, rounds
        weakref.finalize(self, _drain, device, *kept)

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
            for step in (self._step, *self._drafts):
                step.begin()
            for launch in self._first:
                launch.issue()
            if not self._graphs:
                parts = zip((self._step, *self._drafts), self._ends, strict=True)
                self._graphs = [step.capture(end) for step, end in parts]

    def launch(self) -> None:
        """Enqueue one more step, behind those of a draft."""
        check, *drafts = self._graphs
        with self._device.told():
            self._device.use()
            for i in range(self.depth):
                drafts[min(i, 1)].launch(self._device.stream)
            check.launch(self._device.stream)

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
