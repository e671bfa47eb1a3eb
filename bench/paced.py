"""A device whose runs take the time they are said to and compute nothing: what the host does beside
it, and what it makes the device wait for, shows without one.

Everything but the kernels is the engine's own: plans, inputs, schedules, samplers, run-ahead. A run
begins when the one before it has ended and ends so many seconds later; the host is not kept busy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from gguflow.engine.backends.base import DeviceId, Live, Meets, Memory, Program, Ticks
from gguflow.engine.backends.numpy import NumpyBackend
from gguflow.engine.compile import Step
from gguflow.engine.dataclass import dataclass
from gguflow.engine.devices import Devices
from gguflow.engine.graph import Role, Tensor
from gguflow.engine.runtime import host_array

TEXTS = 300, 3000  # tokens that are drawn: text in the bundled model's vocabulary


@dataclass(frozen=True)
class Pace:
    """Milliseconds of a run: `base`, `single` for each of its first 128 rows; where there are more
    `mixed`, and `chunk` for each of the others. Rows are those of the plan, padding included.
    `making`: of a plan's program, before it runs for the first time."""

    base: float
    single: float
    chunk: float
    mixed: float = 0.0
    making: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Pace:
        """Of three to five numbers with commas. Raises ValueError."""
        return cls(*map(float, text.split(",")))

    def seconds(self, n: int) -> float:
        more = self.mixed + self.chunk * (n - 128) if n > 128 else 0.0
        return 1e-3 * (self.base + self.single * min(n, 128) + more)


class Clock:
    """When the device will be done with all that it was given. busy: seconds of runs, in all."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.done, self.busy = 0.0, 0.0
        self._rng = np.random.default_rng(0)

    def run(self, n: int) -> float:
        """Put a run of n rows behind the others; when it ends."""
        took = self.pace.seconds(n)
        self.done = max(self.done, time.perf_counter()) + took
        self.busy += took
        return self.done

    def tokens(self, n: int) -> np.ndarray:
        """What n rows are said to have made."""
        return self._rng.integers(*TEXTS, n, np.int32)


def _until(at: float) -> None:
    while (left := at - time.perf_counter()) > 0:
        time.sleep(left)


class PacedBackend(NumpyBackend):
    """One device of this kind."""

    id = DeviceId("paced")
    name = space = "paced"
    processor = "none"

    def __init__(self, pace: Pace) -> None:
        self.clock = Clock(pace)  # type: ignore[assignment]

    def describe(self) -> str:
        return "runs that take their time and compute nothing"

    def lower(
        self, steps: Sequence[Step], memory: Memory, n_threads: int | None = None,
        meets: Meets | None = None,
    ) -> Program:  # fmt: skip
        time.sleep(1e-3 * self.clock.pace.making)
        return PacedProgram(self.clock, [s for s in steps if isinstance(s, Tensor)], memory)  # type: ignore[arg-type]


class PacedProgram(Program):
    """A run of so many rows."""

    def __init__(self, clock: Clock, nodes: Sequence[Tensor], memory: Memory) -> None:
        self._clock, self._memory = clock, memory
        self.kernels = [n.op or "" for n in nodes]
        leaves = {t.owner for n in nodes for t in n.live_srcs()}
        (tokens,) = (t for t in leaves if t.role is Role.INPUT and t.name == "tokens")
        self._n = tokens.size
        self._made = [host_array(memory, n) for n in nodes if n.op == "sample"]  # type: ignore[arg-type]
        self._ends = 0.0

    def start(self, timed: bool = False, live: Live | None = None) -> None:
        self._ends = self._clock.run(self._n)

    def finish(self) -> Ticks | None:
        _until(self._ends)
        for x in self._made:
            x[:] = self._clock.tokens(len(x))
        return None

    def token_loop(self, tensors: Mapping[str, Tensor]) -> PacedLoop:
        return PacedLoop(self._clock, host_array(self._memory, tensors["pos"]))  # type: ignore[arg-type]


class PacedLoop:
    """As `TokenLoop`. pos: of the rows, which the host has written."""

    def __init__(self, clock: Clock, pos: np.ndarray) -> None:
        self._clock, self._pos = clock, pos
        self._live = pos >= 0
        self._ends: list[float] = []

    def start(self) -> None:
        self._live = self._pos >= 0
        self._ends.clear()

    def launch(self) -> None:
        self._ends.append(self._clock.run(len(self._pos)))

    def wait(self, step: int) -> np.ndarray:
        _until(self._ends[step - 1])
        return np.where(self._live, self._clock.tokens(len(self._pos)), -1).astype(np.int32)


def paced_device(pace: Pace) -> Devices:
    """For a model with `Options(backends=("paced",))`."""
    backend = PacedBackend(pace)
    return Devices(lambda kind, index: backend)
