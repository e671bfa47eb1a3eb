"""Kernels on a device: compiled or taken from the cache, loaded once, launched by handle."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from gguflow.engine import env
from gguflow.engine.pool import Pool
from gguflow.kernels.cuda import jit
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.kernels.cuda.launch import TENSOR_MAP_BYTES, Kernel, Launch, TensorMap

from .cublas import BoundGemm, Cublas
from .device import CudaDevice
from .errors import CudaError

COMPILE_THREADS = 8
SHARED_BY_DEFAULT = 48 << 10  # bytes of shared memory that need no opt-in,
DECLARED = 16 << 10  # of which kernels declare some themselves, at most so many
_TYPES = {"f16": "FLOAT16", "bf16": "BFLOAT16"}  # of tensor maps


class Modules:
    """Every kernel used so far on one device."""

    def __init__(self, device: CudaDevice) -> None:
        from cuda.bindings import driver

        self.device = device
        self.driver = driver
        self._functions: dict[Kernel, Any] = {}
        self._shared: dict[Kernel, int] = {}
        self._beside: set[Kernel] = set()  # whose multiprocessors keep shared memory free
        self._cublas: Cublas | None = None

    def prepare(self, kernels: Iterable[Kernel]) -> None:
        """Compile and load what is missing, several at a time."""
        missing = [k for k in dict.fromkeys(kernels) if k not in self._functions]
        if not missing:
            return
        arch, cache = self.device.info.arch, env.cache_dir() / "cuda"
        wanted = [jit.with_lines(k) for k in missing] if env.cuda_lines() else missing
        with Pool(min(COMPILE_THREADS, len(missing))) as threads:
            try:
                compiled = list(threads.map(lambda k: jit.load(k, arch, cache), wanted))
            except jit.CompileError as e:
                raise CudaError(str(e)) from None
        self.device.use()
        for kernel, code in zip(missing, compiled, strict=True):
            module = self._call(self.driver.cuModuleLoadData(code.cubin), kernel)
            name = code.names[0].encode()
            self._functions[kernel] = self._call(
                self.driver.cuModuleGetFunction(module, name), kernel
            )

    def _call(self, result: tuple[Any, ...], kernel: Kernel) -> Any:
        status, *values = result
        if int(status) != 0:
            raise CudaError(f"{kernel.source} {kernel.entry}: {self.driver.CUresult(status).name}")
        return values[0] if values else None

    def bind(self, launch: Launch | Gemm) -> BoundLaunch | BoundGemm:
        """A launch with its function; `prepare` must have seen its kernel."""
        if isinstance(launch, Gemm):
            if self._cublas is None:
                self._cublas = Cublas(self.device)
            return self._cublas.bind(launch)
        function, driver = self._functions[launch.kernel], self.driver
        attributes = driver.CUfunction_attribute
        if launch.shared > max(self._shared.get(launch.kernel, 0), SHARED_BY_DEFAULT - DECLARED):
            attribute = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call(driver.cuFuncSetAttribute(function, attribute, launch.shared), launch.kernel)
            self._shared[launch.kernel] = launch.shared
        beside = launch.dependent or launch.shared > SHARED_BY_DEFAULT
        if beside and launch.kernel not in self._beside:
            # Left to itself the driver gives a kernel just what it needs, and the blocks of a
            # dependent kernel then find no room beside it.
            attribute = attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            self._call(driver.cuFuncSetAttribute(function, attribute, 100), launch.kernel)
            self._beside.add(launch.kernel)
        return BoundLaunch(self, launch, function)

    def tensor_map(self, launch: Launch, t: TensorMap) -> bytes:
        """The driver's form of it."""
        driver, n = self.driver, len(t.lengths)
        types = driver.CUtensorMapDataType
        made = self._call(
            driver.cuTensorMapEncodeTiled(
                getattr(types, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[t.dtype]}"), n, t.address,
                [driver.cuuint64_t(x) for x in t.lengths],
                [driver.cuuint64_t(x) for x in t.steps],
                [driver.cuuint32_t(x) for x in t.tile],
                [driver.cuuint32_t(1)] * n,
                driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
                driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            ),
            launch.kernel,
        )  # fmt: skip
        return ctypes.string_at(int(made.getPtr()), TENSOR_MAP_BYTES)


class BoundLaunch:
    """A launch that only has to be issued."""

    def __init__(self, modules: Modules, launch: Launch, function: Any) -> None:
        driver = modules.driver
        self.launch = launch
        self._modules = modules
        self._function = function
        self._launch_kernel = driver.cuLaunchKernelEx
        maps = b"".join(modules.tensor_map(launch, m) for m in launch.maps)
        self._args = ctypes.create_string_buffer(maps + launch.args, launch.n_argument_bytes)
        self._params = (ctypes.c_void_p * 1)(ctypes.addressof(self._args))
        self._address = ctypes.addressof(self._params)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
        config.sharedMemBytes = launch.shared
        config.hStream = driver.CUstream(modules.device.stream.ptr)
        if launch.dependent and modules.device.info.is_hopper:
            attribute = driver.CUlaunchAttribute()
            attribute.id = (
                driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            )
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [attribute]
            config.numAttrs = 1
        self._config = config

    def issue(self) -> None:
        """Put it into the device's stream."""
        self._modules._call(
            self._launch_kernel(self._config, self._function, self._address, 0), self.launch.kernel
        )
