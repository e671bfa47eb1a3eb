"""Simulated devices: the reference backend, as many as are asked for, each with memory of its own
and a thread that runs its programs. They show what a plan over several devices does where there are
none: `simulated:0`, `simulated:1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gguflow.engine.backends.base import Backend, DeviceId, Links, Meets, Memory, Program
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.backends.numpy import NumpyBackend
from gguflow.engine.compile import Step
from gguflow.engine.ops.all_reduce import DEVICES

from .channel import channel_bytes
from .program import SimulatedProgram
from .stream import Stream


class SimulatedBackend(NumpyBackend):
    """One of them."""

    def __init__(self, index: int) -> None:
        self.id = DeviceId("simulated", index)
        self.name = self.space = str(self.id)
        self.stream = Stream()
        self.links = Links(HostBuffer.zeros, _reaches, channel_bytes, _shares_rows, _adopt)

    def describe(self) -> str:
        return "reference implementations of every op as any number of devices, slow"

    def lower(
        self,
        steps: Sequence[Step],
        memory: Memory,
        n_threads: int | None = None,
        meets: Meets | None = None,
    ) -> Program:
        if meets is None:
            return super().lower(steps, memory, n_threads)
        return SimulatedProgram(self.stream, steps, memory, meets)


def _reaches(other: Backend) -> bool:
    return isinstance(other, SimulatedBackend)


def _adopt(memory: np.ndarray) -> None:
    """It reaches all memory of the process."""


def _shares_rows(m: int, d: int, floats: bool) -> bool:
    """Of few rows too, so that small prompts show it."""
    return m >= DEVICES


def create(options: dict[str, Any]) -> SimulatedBackend:
    """device: its number; there are as many as are asked for."""
    return SimulatedBackend(int(options.get("device") or 0))
