"""The CPU backend: memory, weights and op records for the native kernels."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from math import prod

import numpy as np

from gguflow.engine import env
from gguflow.engine.backends.base import Backend, DeviceId, Links, Meets, Memory
from gguflow.engine.backends.descriptors import DescriptorError, check_step
from gguflow.engine.backends.host import HostBuffer, HostSlab
from gguflow.engine.compile import Step
from gguflow.engine.graph import Tensor, op_spec

from .abi import GF_PACKED, MAX_SRC, PARAM_BYTES, AbiError, GfOp, GfTensor, tensor_record
from .convert import NativeConverter
from .native import CpuLibrary, ThreadError, load_library, runnable_isas
from .packing import PACKED_ROWS, NativePacker
from .peaks import Measured, measure
from .pinning import may_pin
from .program import CpuProgram

# Below this many bytes moved, waking the other threads costs more than they save.
SINGLE_THREAD_BYTES = 16 << 10

_ALIVE: weakref.WeakSet[CpuBackend] = weakref.WeakSet()


def _leave_pools() -> None:
    for backend in list(_ALIVE):
        backend.leave_pools()


if hasattr(os, "register_at_fork"):  # where processes fork
    os.register_at_fork(after_in_child=_leave_pools)


class CpuBackend(Backend):
    """Native kernels on host threads."""

    id = DeviceId("cpu")
    name = "cpu"
    space = "host"
    links = Links()

    def __init__(self, n_threads: int | None = None, isa: str | None = None) -> None:
        self.n_threads = n_threads or default_threads()
        self.lib: CpuLibrary = load_library(isa)
        self.processor = self.lib.isa
        self._pools: dict[int, int] = {}
        self._ends: list[weakref.finalize] = []  # of the pools
        self.n_forks = 0  # of the process since; programs that saw fewer take a new pool
        _ALIVE.add(self)
        self._supported: dict[tuple[object, ...], bool] = {}
        self._packed = HostSlab()
        self.packer: NativePacker = NativePacker(self.lib, self.n_threads)

    def describe(self) -> str:
        isas = ", ".join(
            f"{isa} (in use)" if isa == self.lib.isa else isa for isa in runnable_isas()
        )
        return f"{self.n_threads} threads; kernels: {isas}"

    def pool(self, n_threads: int | None = None) -> int:
        """Handle of the thread pool of this size, made on first use."""
        n = n_threads or self.n_threads
        if n not in self._pools:
            pin = env.cpu_pin() and may_pin()
            handle = self.lib.cdll.gf_pool_create(n, env.cpu_spin(), int(pin))
            if not handle:
                raise ThreadError(f"cannot start {n} threads")
            self._pools[n] = handle
            self._ends.append(weakref.finalize(self, self.lib.cdll.gf_pool_destroy, handle))
        return self._pools[n]

    def leave_pools(self) -> None:
        """In a process made by fork: threads do not come along, so the pools are empty shells, and
        to join their threads would take for ever."""
        for end in self._ends:
            end.detach()
        self._ends.clear()
        self._pools.clear()
        self.n_forks += 1

    # -- planning --------------------------------------------------------------------------------

    def supports(self, node: Tensor) -> bool:
        if node.op is None or not self.lib.address(f"gf_op_{node.op}"):
            return False
        if len(node.srcs) > MAX_SRC:
            return False
        layout = [(t.dtype, t.shape, t.strides) if t else None for t in node.srcs]
        key = (node.op, *node.params.items(), node.dtype, node.shape, node.strides, *layout)
        known = self._supported.get(key)
        if known is None:
            known = self._supported[key] = self.lib.accepts(node.op, self.record(node, None))
        return known

    def packed_bytes(self, weight: Tensor, users: Sequence[Tensor]) -> int:
        stack = len(weight.shape) == 3
        if len(weight.shape) not in (2, 3) or not weight.dtype.is_quantized:
            return 0
        if stack and weight.shape[1] % PACKED_ROWS:
            return 0
        multiplied = False
        for u in users:
            spec = op_spec(u.op or "")
            for i, s in enumerate(u.srcs):
                if s is None or s.owner is not weight:
                    continue
                if s is not weight or not self.lib.reads_packed(spec.name, i, stack):
                    return 0
                multiplied |= i in spec.weights
        if not multiplied:
            return 0  # a table that is only looked up in gains nothing
        return self.lib.packed_bytes(weight.dtype, prod(weight.shape[:-1]), weight.shape[-1])

    def converter(self) -> NativeConverter:
        """The native quantizers."""
        return NativeConverter(self.lib, self.n_threads)

    def peaks(self) -> Measured:
        """As `peaks.measure`, of this backend's threads."""
        return measure(self.lib, self.n_threads)

    # -- memory ----------------------------------------------------------------------------------

    def alloc(self, nbytes: int) -> HostBuffer:
        return HostBuffer.zeros(nbytes)

    def alloc_shared(self, nbytes: int) -> HostBuffer:
        return HostBuffer.zeros(nbytes)

    def load_weight(self, weight: Tensor, raw: np.ndarray, packed: bool) -> HostBuffer:
        if not packed:
            return HostBuffer(raw)
        n_rows, n_cols = prod(weight.shape[:-1]), weight.shape[-1]
        out = self._packed.take(self.lib.packed_bytes(weight.dtype, n_rows, n_cols))
        self.packer.pack(weight, raw, out.array)
        return out

    # -- lowering --------------------------------------------------------------------------------

    def record(self, node: Tensor, memory: Memory | None) -> GfOp:
        """The op record of a node; without memory, all addresses are null and nothing is checked
        but what a record carries.

        Raises AbiError for more operands or parameters than it does, DescriptorError for what a
        kernel may not be given.
        """
        assert node.op is not None
        if len(node.srcs) > MAX_SRC:
            raise AbiError(f"{node.name}: {node.op} has {len(node.srcs)} operands, GF_MAX_SRC of "
                           f"kernels/cpu/abi.h is {MAX_SRC}")  # fmt: skip

        if memory is not None:
            check_step(node, memory)

        def operand(t: Tensor | None) -> GfTensor:
            if t is None:
                return GfTensor()
            if memory is None:
                return tensor_record(t, 0)
            buffer, offset = memory.locate(t.owner)
            assert isinstance(buffer, HostBuffer)
            record = tensor_record(t, buffer.address + offset + t.view_offset)
            if memory.is_packed(t.owner):
                n = self.lib.packed_bytes(t.dtype, prod(t.shape[:-1]), t.shape[-1])
                if not 0 < n <= buffer.nbytes:
                    raise DescriptorError(
                        f"{node.name}: operand {t.name} takes {n} bytes repacked, it has "
                        f"{buffer.nbytes}"
                    )
                record.flags |= GF_PACKED
            return record

        spec = op_spec(node.op)
        op = GfOp(n_src=len(node.srcs), dst=operand(node))
        for i, s in enumerate(node.srcs):
            op.src[i] = operand(s)
        params = spec.pack_params(node.params)
        if len(params) > PARAM_BYTES:
            raise AbiError(f"{node.name}: the parameters of {node.op} take {len(params)} bytes, "
                           f"GF_PARAM_BYTES of kernels/cpu/abi.h is {PARAM_BYTES}")  # fmt: skip
        ctypes.memmove(op.params, params, len(params))
        op.fn = self.lib.address(f"gf_op_{node.op}")
        if self.lib.needs_init(node.op, op):
            op.init = self.lib.address(f"gf_init_{node.op}")
        op.max_threads = 1 if spec.bytes(node) + spec.flops(node) < SINGLE_THREAD_BYTES else 0
        return op

    def lower(
        self,
        steps: Sequence[Step],
        memory: Memory,
        n_threads: int | None = None,
        meets: Meets | None = None,
    ) -> CpuProgram:
        return CpuProgram(self, steps, memory, n_threads or self.n_threads, meets or Meets())


def default_threads() -> int:
    """Processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this platform
        return os.cpu_count() or 1
