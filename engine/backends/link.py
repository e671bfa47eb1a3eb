"""Linked execution, as backends see it: programs of nodes, signals and waits on flags.

A flag is a 32-bit word of `alloc_pinned` memory, which the host and the device both reach. A signal
sets it to 1 when the steps before it are done and what they made can be seen; a wait takes it back
to 0. One more word, `given_up`, is 0 unless some wait ran out of time; every wait leaves then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from gguflow.engine.graph import Tensor

from .base import Memory
from .host import HostBuffer


@dataclass(frozen=True)
class Transfer:
    """Bytes the device copies between its memory and pinned memory. Both are addresses, multiples
    of 16; up to 15 bytes beyond `nbytes` may be copied too."""

    target: int
    source: int
    nbytes: int


@dataclass(frozen=True)
class FlagSignal:
    """Copy, then set the flag at address `flag`. Only devices copy."""

    flag: int
    transfers: tuple[Transfer, ...] = ()


@dataclass(frozen=True)
class FlagWait:
    """Wait for a flag, take it back, then copy. After `timeout_ns` nanoseconds `code`, which is not
    0, goes to the word at `given_up`; once that is not 0 nothing is waited for."""

    flag: int
    given_up: int
    code: int
    timeout_ns: int
    transfers: tuple[Transfer, ...] = ()


ProgramStep = Tensor | FlagSignal | FlagWait


class HostProgram(Protocol):
    """A program of the host, run by the calling thread and its helpers."""

    @property
    def kernels(self) -> Sequence[str]:
        """Per step, what runs it."""

    def run(self, ends_ns: np.ndarray | None = None) -> None:
        """Run to the end, or to the first wait that is given up. ends_ns: as of executables."""


class DeviceProgram(Protocol):
    """A program of the device."""

    @property
    def kernels(self) -> Sequence[str]:
        """Per step, what runs it."""

    def start(self, timed: bool = False) -> None:
        """Start it and return at once; timed: with readings of the device's clock."""

    def finish(self) -> np.ndarray | None:
        """Wait for its end. The readings of a timed run: int64 [n_steps + 1] nanoseconds."""


@runtime_checkable
class LinkHost(Protocol):
    """A backend on host memory that can wait for a device in the middle of a program."""

    def compile_host_program(
        self, steps: Sequence[ProgramStep], memory: Memory, n_threads: int | None = None
    ) -> HostProgram: ...


@runtime_checkable
class LinkDevice(Protocol):
    """A backend with memory of its own whose device can wait for the host."""

    def alloc_pinned(self, nbytes: int) -> HostBuffer:
        """Zeroed host memory that the device reaches at the same address."""

    def compile_device_program(
        self, steps: Sequence[ProgramStep], memory: Memory
    ) -> DeviceProgram: ...
