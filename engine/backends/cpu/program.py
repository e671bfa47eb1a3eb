"""A CPU program: steps as op records that one native call runs."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gguflow.engine import env
from gguflow.engine.backends.base import Live, Meets, Memory, Program, Ticks, refuse
from gguflow.engine.backends.host import HostBuffer
from gguflow.engine.compile import Recv, Send, Step
from gguflow.engine.graph import Tensor
from gguflow.engine.interrupt import Cancelled

from .abi import GfOp
from .live_rows import LiveRows

if TYPE_CHECKING:
    from .backend import CpuBackend

# Turns of the wait loop before a worker parks, about a millisecond: while the device computes, all
# but one thread sit at a barrier, and waking sixteen of them costs more than a layer's share.
LINKED_SPINS = 30_000
INTERRUPTED = 1  # what gf_pool_run returns after gf_interrupt; 2 after gf_cancel


class CpuProgram(Program):
    """Nodes as op records, and meetings with another device as kernels/cpu/link.cpp has them.

    A wait that is given up ends the run; the word `given_up` of the flags says so.
    """

    def __init__(
        self,
        backend: CpuBackend,
        steps: Sequence[Step],
        memory: Memory,
        n_threads: int,
        meets: Meets,
    ) -> None:
        self._stop = np.zeros(1, np.int32)
        self.kernels = [f"{_symbol(backend, s)}.{backend.lib.isa}" for s in steps]
        records = [self._record(backend, s, memory, n_threads, meets) for s in steps]
        self._ops = (GfOp * max(len(records), 1))(*records)
        self._backend, self._n_threads = backend, n_threads
        self._n_forks = backend.n_forks
        self._keep = memory
        self._ticks: np.ndarray | None = None
        self._steps = steps
        self._live: Live | None = None
        cdll = backend.lib.cdll
        self._before: tuple[object, ...] = (
            ctypes.c_void_p(backend.pool(n_threads)),
            ctypes.cast(self._ops, ctypes.c_void_p),
            ctypes.c_int64(len(records)),
        )
        self._take_scratch(max([r.scratch for r in records], default=0))
        # The two entries of the executor differ in what follows the clock readings.
        self._after: tuple[object, ...] = ()
        self._run = cdll.gf_pool_run
        if any(not isinstance(s, Tensor) for s in steps):
            self._run = cdll.gf_pool_run_linked
            spins = ctypes.c_int32(max(LINKED_SPINS, env.cpu_spin()))
            self._after = spins, ctypes.c_void_p(self._stop.ctypes.data)

    def _record(
        self, backend: CpuBackend, step: Step, memory: Memory, n_threads: int, meets: Meets
    ) -> GfOp:
        if isinstance(step, Tensor):
            record = backend.record(step, memory)
            record.scratch = backend.lib.scratch_bytes(step.op or "", record, n_threads)
            return record
        if step.meeting not in meets.flags:
            refuse(step, backend.name)
        flag = meets.flags[step.meeting]
        if isinstance(step, Send):
            symbol, params = "gf_link_signal", struct.pack("@P", flag.address)
        else:
            symbol = "gf_link_wait"
            params = struct.pack(
                "@PPPqi", flag.address, flag.given_up, self._stop.ctypes.data, flag.timeout_ns,
                flag.code,
            )  # fmt: skip
        op = GfOp(fn=backend.lib.address(symbol), max_threads=1)
        ctypes.memmove(op.params, params, len(params))
        return op

    def _take_scratch(self, nbytes: int) -> None:
        self._scratch = HostBuffer.zeros(nbytes)
        where = ctypes.c_void_p(self._scratch.address), ctypes.c_int64(nbytes)
        self._before = (*self._before[:3], *where)

    def start(self, timed: bool = False, live: Live | None = None) -> None:
        """Runs all of it on the calling thread and the pool's."""
        if self._n_forks != self._backend.n_forks:
            self._n_forks = self._backend.n_forks
            pool = ctypes.c_void_p(self._backend.pool(self._n_threads))
            self._before = (pool, *self._before[1:])
        if live != self._live:
            scratch = self._live_rows.set(live)
            if scratch > self._scratch.nbytes:
                self._take_scratch(scratch)
            self._live = None if live is None else dict(live)
        ends = None
        if timed:
            self._ticks = np.zeros(len(self.kernels) + 1, np.int64)
            ends = ctypes.c_void_p(self._ticks.ctypes.data)
        ended = self._run(*self._before, ends, *self._after)
        if ended:  # in the middle, see `engine.interrupt`
            raise KeyboardInterrupt if ended == INTERRUPTED else Cancelled

    @cached_property
    def _live_rows(self) -> LiveRows:
        """Made when a run leaves rows out: a plan of single tokens has none."""
        ops, rows = self._ops, self._keep.rows
        return LiveRows(self._backend.lib, ops, self._steps, rows, self._n_threads)

    def finish(self) -> Ticks | None:
        ticks, self._ticks = self._ticks, None
        return None if ticks is None else Ticks(ticks, of_host=True)


def _symbol(backend: CpuBackend, step: Step) -> str:
    if isinstance(step, Tensor):
        return step.op or ""
    if isinstance(step, Send | Recv):
        return "link_signal" if isinstance(step, Send) else "link_wait"
    refuse(step, backend.name)
