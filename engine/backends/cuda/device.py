"""Opening a GPU: CuPy, the driver and the device are checked here, each with its own message."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gguflow.engine.limits import EqualBits
from gguflow.kernels.cuda.launch import DeviceInfo

from .errors import CudaError

INSTALL = "pip install 'gguflow[cuda13]', or 'gguflow[cuda12]' for an older driver"
LEAST_CAPABILITY = (8, 0)  # bfloat16 conversions and asynchronous copies


def import_cupy() -> Any:
    """CuPy. Raises CudaError when it or the driver bindings are not installed."""
    try:
        import cupy
        from cuda.bindings import driver  # noqa: F401  (the launches need it)
    except ImportError as e:
        raise CudaError(f"the GPU needs CuPy ({e}); install it with: {INSTALL}") from None
    return cupy


class CudaDevice:
    """One GPU and the stream everything on it runs in. equal_bits: as in `Options`. Raises
    CudaError when it cannot be used."""

    def __init__(self, index: int, equal_bits: EqualBits = False) -> None:
        self.cupy = import_cupy()
        self.runtime = self.cupy.cuda.runtime
        self.index = index
        self._check_driver()
        self.count = self._count()
        if not 0 <= index < self.count:
            raise CudaError(
                f"there is no GPU number {index}; this machine has {self.count}: change `device`"
            )
        self.use()
        facts = self.runtime.getDeviceProperties(index)
        capability = facts["major"], facts["minor"]
        self.name = facts["name"].decode()
        self.card: str = self.runtime.deviceGetPCIBusId(index)
        if capability < LEAST_CAPABILITY:
            raise CudaError(
                f"{self.name} has compute capability {capability[0]}.{capability[1]}; "
                f"{LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} is needed: run with `n_gpu_layers=0`"
            )
        self.info = DeviceInfo(
            arch=f"sm_{capability[0]}{capability[1]}",
            sm_count=facts["multiProcessorCount"],
            threads_per_sm=facts["maxThreadsPerMultiProcessor"],
            shared_per_block=facts["sharedMemPerBlockOptin"],
        )
        self._set_bits(equal_bits)
        self.stream = self.cupy.cuda.Stream(non_blocking=True)

    def _set_bits(self, equal_bits: EqualBits) -> None:
        many = equal_bits == "many"
        self.info = replace(self.info, equal_bits=bool(equal_bits), one_class=many)

    def with_bits(self, equal_bits: EqualBits) -> CudaDevice:
        """The same GPU and stream for kernels with other `equal_bits`."""
        other = copy.copy(self)
        other._set_bits(equal_bits)
        return other

    def _check_driver(self) -> None:
        have, need = self.runtime.driverGetVersion(), self.runtime.runtimeGetVersion()
        if have == 0:
            raise CudaError(
                "no NVIDIA driver is installed: install one, or run with `n_gpu_layers=0`"
            )
        if have // 1000 < need // 1000:  # minor versions are compatible
            raise CudaError(
                f"the NVIDIA driver supports CUDA {have // 1000}.{have % 1000 // 10} and CuPy "
                f"needs {need // 1000}: update the driver, or pip install "
                f"'gguflow[cuda{have // 1000}]'"
            )

    def _count(self) -> int:
        try:
            return int(self.runtime.getDeviceCount())
        except self.runtime.CUDARuntimeError as e:
            raise CudaError(f"no GPU can be used ({e}): run with `n_gpu_layers=0`") from None

    @contextmanager
    def told(self) -> Iterator[None]:
        """Around calls of the runtime in a run: what one of them raises becomes a CudaError. A
        device that is lost says so at whichever comes next."""
        try:
            yield
        except self.runtime.CUDARuntimeError as e:
            raise CudaError(f"{self.name}: {e}") from None

    def use(self) -> None:
        """Make this the calling thread's device."""
        self.runtime.setDevice(self.index)

    def memory(self) -> tuple[int, int]:
        """(free, all) bytes of device memory."""
        self.use()
        free, total = self.runtime.memGetInfo()
        # What CuPy's pool holds but nobody uses can be used again.
        return free + self.cupy.get_default_memory_pool().free_bytes(), total

    def reaches(self, peer: int) -> bool:
        """Whether kernels of this device can write into the memory of another; from now on they
        may."""
        if not self.runtime.deviceCanAccessPeer(self.index, peer):
            return False
        self.use()
        try:
            self.runtime.deviceEnablePeerAccess(peer)
        except self.runtime.CUDARuntimeError as e:
            if "PeerAccessAlreadyEnabled" not in str(e):
                return False
        return True

    def is_elsewhere(self, address: int) -> bool:
        """Whether memory lies on another device."""
        found = self.runtime.pointerGetAttributes(address)
        return bool(found.device != self.index and found.type == self.runtime.memoryTypeDevice)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Enqueue a copy between addresses of the device, or of the device and pinned memory."""
        self.runtime.memcpyAsync(to, source, nbytes, self.runtime.memcpyDefault, self.stream.ptr)

    def is_idle(self) -> bool:
        """Whether the stream is empty. Raises CudaError for what failed in it."""
        with self.told():
            return bool(self.stream.done)

    def event(self) -> Any:
        """What can be recorded in the stream and waited for."""
        return self.cupy.cuda.Event(disable_timing=True)

    def wait(self, event: Any) -> None:
        """Wait for what was in the stream when the event was recorded, and not for what came after
        it. Raises as `synchronize` does."""
        with self.told():
            event.synchronize()

    def synchronize(self) -> None:
        """Wait for everything in the stream. Raises CudaError for what failed in it."""
        with self.told():
            self.stream.synchronize()
