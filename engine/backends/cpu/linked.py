"""A CPU program with waits for another device: kernels/cpu/link.cpp as op records."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gguflow.engine import env
from gguflow.engine.backends.base import Memory
from gguflow.engine.backends.link import FlagSignal, FlagWait, ProgramStep

from .abi import GfOp
from .backend import CpuExecutable
from .native import CpuLibraryError

if TYPE_CHECKING:
    from .backend import CpuBackend

# Turns of the wait loop before a worker parks, about a millisecond: while the device computes, all
# but one thread sit at a barrier, and waking sixteen of them costs more than a layer's share.
LINKED_SPINS = 30_000


class CpuProgram(CpuExecutable):
    """Nodes, signals and waits as op records; `run` is one native call.

    A wait that is given up ends the run; the word `given_up` of the flags says so.
    """

    def __init__(
        self, backend: CpuBackend, steps: Sequence[ProgramStep], memory: Memory, n_threads: int
    ) -> None:
        self._stop = np.zeros(1, np.int32)
        super().__init__(backend, steps, memory, n_threads)
        run = getattr(backend.lib.cdll, "gf_pool_run_linked", None)
        if run is None:
            raise CpuLibraryError("the CPU kernels cannot be linked with a device; rebuild gguflow")
        run.restype = None
        self._run_linked = run
        self._spins = ctypes.c_int32(max(LINKED_SPINS, env.cpu_spin()))
        self._stop_address = ctypes.c_void_p(self._stop.ctypes.data)

    def _kernel(self, backend: CpuBackend, step: ProgramStep) -> str:
        if isinstance(step, FlagSignal):
            return f"link_signal.{backend.lib.isa}"
        if isinstance(step, FlagWait):
            return f"link_wait.{backend.lib.isa}"
        return super()._kernel(backend, step)

    def _record(
        self, backend: CpuBackend, step: ProgramStep, memory: Memory, n_threads: int
    ) -> GfOp:
        if isinstance(step, FlagSignal):
            symbol, params = "gf_link_signal", struct.pack("@P", step.flag)
        elif isinstance(step, FlagWait):
            symbol = "gf_link_wait"
            params = struct.pack(
                "@PPPqi", step.flag, step.given_up, self._stop.ctypes.data, step.timeout_ns,
                step.code,
            )  # fmt: skip
        else:
            return super()._record(backend, step, memory, n_threads)
        op = GfOp(fn=backend.lib.address(symbol), max_threads=1)
        ctypes.memmove(op.params, params, len(params))
        return op

    def run(self, ends_ns: np.ndarray | None = None) -> None:
        ends = None if ends_ns is None else ctypes.c_void_p(ends_ns.ctypes.data)
        self._run_linked(*self._args, ends, self._spins, self._stop_address)
