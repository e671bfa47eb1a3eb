"""A GPU that cannot be used is one line that says why and what to do; no GPU is needed for this."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gguflow.engine.backends import cuda
from gguflow.engine.backends.base import find_backend
from gguflow.engine.backends.cuda import CudaError
from gguflow.engine.backends.cuda.device import CudaDevice
from gguflow.engine.backends.cuda.memory import CudaBuffer


class OutOfMemoryError(MemoryError):
    pass


class CUDARuntimeError(RuntimeError):
    pass


def fake_cupy(driver: int = 13000, count: int | Exception = 1, major: int = 9) -> Any:
    """As much of CuPy as opening a device needs."""

    def device_count() -> int:
        if isinstance(count, Exception):
            raise count
        return count

    def alloc(nbytes: int) -> Any:
        raise OutOfMemoryError

    properties = {
        "major": major, "minor": 0, "name": b"Imaginary GPU", "multiProcessorCount": 4,
        "maxThreadsPerMultiProcessor": 2048, "sharedMemPerBlockOptin": 1 << 16,
    }  # fmt: skip
    stream = SimpleNamespace(__enter__=None)
    runtime = SimpleNamespace(
        driverGetVersion=lambda: driver, runtimeGetVersion=lambda: 13020,
        getDeviceCount=device_count, getDeviceProperties=lambda index: properties,
        deviceGetPCIBusId="0000:17:0{}.0".format,
        setDevice=lambda index: None, memGetInfo=lambda: (1000, 5000),
        CUDARuntimeError=CUDARuntimeError,
    )  # fmt: skip
    cuda = SimpleNamespace(
        runtime=runtime, Stream=lambda non_blocking: stream, alloc=alloc,
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    )  # fmt: skip
    module = ModuleType("cupy")
    module.cuda = cuda  # type: ignore[attr-defined]
    module.get_default_memory_pool = lambda: SimpleNamespace(free_bytes=lambda: 24)  # type: ignore
    return module


@pytest.fixture
def driver_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bindings import even where they are not installed."""
    bindings = ModuleType("cuda.bindings")
    bindings.driver = ModuleType("cuda.bindings.driver")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings.driver)


def message(monkeypatch: pytest.MonkeyPatch, cupy: Any, device: int = 0) -> str:
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(CudaError) as e:
        find_backend("cuda", {"device": device})
    assert "\n" not in str(e.value)
    return str(e.value)


def test_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    text = message(monkeypatch, None)
    assert "needs CuPy" in text and "pip install 'gguflow[cuda13]'" in text


@pytest.mark.parametrize(
    "options, device, expected",
    [
        ({"driver": 0}, 0, "no NVIDIA driver is installed"),
        ({"driver": 12080}, 0, "supports CUDA 12.8 and CuPy needs 13: update the driver"),
        ({"driver": 12080}, 0, "'gguflow[cuda12]'"),
        ({"count": CUDARuntimeError("cudaErrorNoDevice")}, 0, "no GPU can be used (cudaErrorNo"),
        ({"count": 2}, 2, "no GPU number 2; this machine has 2: change `device`"),
        ({"major": 7}, 0, "Imaginary GPU has compute capability 7.0; 8.0 is needed"),
    ],
)
def test_no_usable_device(
    driver_bindings: None,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    device: int,
    expected: str,
) -> None:
    assert expected in message(monkeypatch, fake_cupy(**options), device)


@pytest.mark.parametrize("equal_bits", [False, True])
def test_the_launches_know_of_equal_bits(
    driver_bindings: None, monkeypatch: pytest.MonkeyPatch, equal_bits: bool
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    assert CudaDevice(0, equal_bits).info.equal_bits is equal_bits
    made: list[tuple[int, bool]] = []
    monkeypatch.setattr("gguflow.engine.backends.cuda.CudaBackend", lambda *a: made.append(a))
    cuda.create({"device": 1, "equal_bits": equal_bits})
    cuda.create({})
    assert made == [(1, equal_bits), (0, False)]


def test_out_of_memory_gives_the_figures() -> None:
    cupy = fake_cupy()

    class Stream:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    device = SimpleNamespace(
        cupy=cupy, index=1, stream=Stream(), use=lambda: None, memory=lambda: (1024, 5000)
    )
    with pytest.raises(MemoryError, match="cuda:1: cannot allocate 7777 bytes: 1024 of 5000"):
        CudaBuffer(device, 7777)  # type: ignore[arg-type]


def test_nothing_imports_cupy_unless_asked() -> None:
    import subprocess

    code = (
        "import sys, gguflow.engine.model, gguflow.kernels.cuda.launch as l; l.launch_files();"
        "sys.exit('cupy' in sys.modules or 'cuda' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
