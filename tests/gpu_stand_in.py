"""python tests/gpu_stand_in.py FILE [pytest arguments]: which kernels the GPU tests launch, found
without a GPU, in 12 minutes. FILE is as `covered.json` of a run without a tool (gpu_coverage.py).

The device is memory of the host, launches and products of a library do nothing, and no oracle is
asked, so tests fail sooner or later; what they have launched by then is written down. A test that
waits for a device in vain is left after QUEUE_TEST seconds (15).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).parent / part) for part in ("", "ops")]

ALIGN = 512
PROPERTIES = {
    "major": 9, "minor": 0, "name": b"stand-in", "multiProcessorCount": 132,
    "maxThreadsPerMultiProcessor": 2048, "sharedMemPerBlockOptin": 227 << 10,
}  # fmt: skip


class Error(Exception):
    """What CuPy raises; never raised here."""


class Memory:
    def __init__(self, nbytes: int) -> None:
        self._bytes = np.zeros(nbytes + ALIGN, np.uint8)
        self.ptr = -(-self._bytes.ctypes.data // ALIGN) * ALIGN


class Done:
    """A stream, a graph or an event: whatever is asked of it is over at once."""

    ptr, done = 1, True

    def __init__(self, *args: object, **options: object) -> None: ...
    def __enter__(self) -> Done:
        return self

    def __exit__(self, *args: object) -> None: ...
    def synchronize(self) -> None: ...
    def launch(self, stream: object = None) -> None: ...
    def record(self, what: object = None) -> None: ...
    def wait_event(self, event: object) -> None: ...
    def begin_capture(self, *args: object) -> None: ...
    def end_capture(self) -> Done:
        return Done()

    def free_bytes(self) -> int:
        return 0

    def free_all_blocks(self) -> None: ...


def cupy() -> types.ModuleType:
    """As much of CuPy as the backend calls."""
    nothing = lambda *_: None  # noqa: E731
    runtime = types.SimpleNamespace(
        CUDARuntimeError=Error, driverGetVersion=lambda: 13000, runtimeGetVersion=lambda: 13000,
        getDeviceCount=lambda: 1, getDeviceProperties=lambda _: PROPERTIES,
        deviceGetPCIBusId=str, setDevice=nothing, deviceSynchronize=nothing,
        memGetInfo=lambda: (100 << 30, 140 << 30), hostRegister=nothing, hostUnregister=nothing,
        memsetAsync=lambda to, value, n, _: ctypes.memset(to, value, n),
        memcpyAsync=lambda to, source, n, *_: ctypes.memmove(to, source, n),
        memcpyDefault=4, memcpyDeviceToHost=2, memcpyHostToDevice=1, memoryTypeDevice=2,
        pointerGetAttributes=lambda _: types.SimpleNamespace(device=0, type=2),
        deviceCanAccessPeer=lambda *_: 0, deviceGetAttribute=lambda *_: 1,
    )  # fmt: skip
    made, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
    cuda.__dict__.update(
        runtime=runtime, alloc=Memory, alloc_pinned_memory=lambda n: np.zeros(n, np.uint8),
        memory=types.SimpleNamespace(OutOfMemoryError=Error), Stream=Done, Event=Done,
        get_elapsed_time=lambda *_: 0.01,
    )  # fmt: skip
    made.__dict__.update(cuda=cuda, get_default_memory_pool=Done)
    return made


class NoProduct:
    """Of a library: bound and issued, and nothing happens."""

    def __init__(self, device: object) -> None: ...
    def bind(self, gemm: object) -> NoProduct:
        return self

    def issue(self) -> None: ...


def install() -> None:
    """In the place of the device, the compiler and the oracle."""
    module = cupy()
    sys.modules |= {"cupy": module, "cupy.cuda": module.cuda}
    from cuda.bindings import driver

    for name in ("cuModuleLoadData", "cuModuleGetFunction"):
        setattr(driver, name, lambda *_: (0, object()))
    for name in ("cuFuncSetAttribute", "cuLaunchKernelEx"):
        setattr(driver, name, lambda *_: (0,))
    import harness

    from gguflow.engine.backends.cuda import modules
    from gguflow.engine.runtime import exchange
    from gguflow.kernels.cuda import jit

    jit.load = lambda *_: jit.Compiled(b"", ("x",))  # type: ignore[assignment]
    modules.Cublas = NoProduct  # type: ignore[assignment,misc]
    exchange.PATIENCE_S = 0.2
    values, around, encode = harness._values, harness._surroundings, harness.encode

    def is_drawn(operand: Any, dtype: Any) -> bool:
        return not dtype.is_integer and (operand.data is None or callable(operand.data))

    def quick_values(operand: Any, dtype: Any, rng: Any) -> np.ndarray:
        if is_drawn(operand, dtype):
            return np.zeros(operand.shape, np.float32)
        return values(operand, dtype, rng)

    def quick_around(dtype: Any, shape: Any, rng: Any) -> np.ndarray:
        return around(dtype, shape, rng) if dtype.is_integer else np.zeros(shape, np.float32)

    def quick_encode(dtype: Any, data: np.ndarray) -> np.ndarray:
        if dtype.is_quantized:
            return np.zeros(dtype.array_bytes(data.shape), np.uint8)
        return encode(dtype, data)

    def no_oracle(graph: Any, feeds: Any, outputs: Any) -> dict[str, np.ndarray]:
        kind = lambda t: t.dtype.storage if t.dtype.is_integer else np.float32  # noqa: E731
        return {n.name: np.zeros(n.shape, kind(n)) for n in outputs}

    harness._values, harness._surroundings = quick_values, quick_around
    harness.encode, harness.evaluate = quick_encode, no_oracle
    harness.nmse = lambda actual, expected: 0.0


class Watch:
    """What each test has launched."""

    def __init__(self) -> None:
        from gpu_coverage import Ran

        self.tests: dict[str, Ran] = {}
        self._made = Ran
        self._kernels: dict[str, None] = {}
        self._skipped = False

    def saw(self, kernel: Any) -> None:
        self._kernels[" ".join((kernel.source, kernel.entry, *kernel.options))] = None

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._kernels.clear()
        self._skipped, began = False, time.monotonic()
        signal.alarm(int(os.environ.get("QUEUE_TEST", "15")))
        yield
        signal.alarm(0)
        outcome = "skipped" if self._skipped and not self._kernels else "passed"
        took = round(time.monotonic() - began, 3)
        self.tests[item.nodeid] = self._made(outcome, took, tuple(sorted(self._kernels)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._skipped |= report.skipped


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="is written")
    args, pytest_flags = parser.parse_known_args(argv)
    install()
    import gpu_coverage
    import gpu_queue

    def late(*_: object) -> None:
        raise TimeoutError("left, as nothing comes of it")

    signal.signal(signal.SIGALRM, late)
    watch = Watch()
    gpu_queue.watch_launches(watch)  # type: ignore[arg-type]
    where = pytest_flags or ["tests/gpu", "tests/ops/test_sample_distribution.py"]
    flags = ["-m", "gpu", "-q", "--tb=no", "-p", "no:cacheprovider", "--no-summary"]
    pytest.main([*flags, *where], plugins=[watch])
    gpu_coverage.write(args.file, watch.tests)
    print(f"{len(watch.tests)} tests, {len(gpu_coverage.launched(watch.tests))} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
