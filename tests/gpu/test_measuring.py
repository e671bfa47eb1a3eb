"""Measuring a GPU: the clock, the roofs and the libraries beside our kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sizes import SANITIZED

from gguflow.engine.backends.cuda import peaks, rivals, timing
from gguflow.engine.graph import Operand, Tensor, dtype_by_name, op_spec
from gguflow.engine.kernel_bench import KernelCase, KernelTimer, all_cases, measure
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.kernels.cuda.launch import DeviceInfo
from gguflow.kernels.cuda.peaks import f32_peak, int8_peak, read_peak


class Clock:
    """A device whose stream does things at once; every event costs two microseconds."""

    def __init__(self) -> None:
        self.now, self.log = 0.0, []  # type: ignore[var-annotated]
        clock = self

        class Event:
            def record(self, stream: object) -> None:
                clock.now += 2
                clock.log.append("event")
                self.at = clock.now

        def between(begin: Event, end: Event) -> float:
            return (end.at - begin.at) / 1e3

        self.stream = object()
        self.cupy = SimpleNamespace(cuda=SimpleNamespace(Event=Event, get_elapsed_time=between))

    def use(self) -> None: ...

    def synchronize(self) -> None:
        self.log.append("wait")

    def work(self, name: str, us: float) -> Any:
        def issue() -> None:
            self.now += us
            self.log.append(name)

        return issue


def test_cold_times_are_without_the_flush_and_the_events() -> None:
    clock: Any = Clock()
    times = timing.time_cold(clock, clock.work("work", 5), clock.work("flush", 70), 3)
    assert times == pytest.approx([5.0] * 3)
    flush = ["flush", "flush"]
    once = [*flush, "event", "work", "event"]
    assert clock.log == [*flush, "event", "event"] * 3 + ["wait"] + once * 3 + ["wait"]
    assert timing.elapsed_us(clock, clock.work("work", 5)) == pytest.approx(7)


class FakeBackend:
    """Gives the same time to everything, and remembers what it was asked for."""

    def __init__(self, free: int) -> None:
        clock = Clock()
        self.device: Any = clock
        clock.memory = lambda: (free, free)  # type: ignore[attr-defined]
        clock.info = DeviceInfo()  # type: ignore[attr-defined]
        self.bound: list[Any] = []
        self.allocated = 0
        self.modules = SimpleNamespace(prepare=list, bind=self.bind)

    def alloc(self, nbytes: int) -> Any:
        self.allocated += nbytes
        return SimpleNamespace(address=1 << 20, write=lambda at, data: None)

    def bind(self, step: Any) -> Any:
        self.bound.append(step)
        return SimpleNamespace(issue=self.device.work("work", 98))  # 100 with an event's two


def test_the_roofs_are_amounts_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "SIDES", (256,))
    backend: Any = FakeBackend(16 << 30)
    read, f32, int8, f16 = peaks.measure(backend)  # type: ignore[misc]
    info = DeviceInfo()
    assert read == pytest.approx((1 << 30) / 100 / 1e3)
    assert f32 == pytest.approx(f32_peak(peaks.TURNS, 0, info)[1] / 100 / 1e3)
    assert int8 == pytest.approx(int8_peak(peaks.TURNS, 0, info)[1] / 100 / 1e3)
    assert f16 == pytest.approx(2 * 256**3 / 100 / 1e3)
    assert [s.dtype for s in backend.bound if isinstance(s, Gemm)] == ["f16"]
    # 132 multiprocessors of 2048 threads with 8 chains; two and eight operations a turn
    assert f32_peak(10, 0, info)[1] == 132 * 2048 * 8 * 10 * 2
    assert int8_peak(10, 0, info)[1] == 132 * 2048 * 8 * 10 * 8
    assert read_peak(0, 1 << 20, 0, info).grid == (132 * 4, 1, 1)


def test_a_full_card_is_not_measured() -> None:
    backend: Any = FakeBackend(512 << 20)
    assert peaks.measure(backend) is None and backend.allocated == 0
    backend = FakeBackend(2 << 30)
    assert peaks.measure(backend) is not None
    assert backend.allocated <= 1 << 30


class Formula:
    """`ElementwiseKernel` by the references of the ops."""

    def __init__(self, given: str, result: str, formula: str, name: str) -> None:
        self.op = name.removeprefix("rival_")
        self.n = given.count("T ")

    def __call__(self, *args: Any) -> None:
        *srcs, out = args
        params = {"s": float(srcs[1]), "b": float(srcs[2])} if self.op == "scale" else {}
        arrays = srcs[:1] if self.op == "scale" else srcs
        assert len(srcs) == self.n
        out[...] = op_spec(self.op).reference(*arrays, **params)


CUPY = SimpleNamespace(
    **{n: getattr(np, n) for n in (*rivals._UFUNCS.values(), *rivals._REDUCTIONS.values(),
                                   "argmax", "clip", "copyto", "concatenate", "take")},
    ElementwiseKernel=Formula,
)  # fmt: skip


def shrunk(case: KernelCase) -> KernelCase:
    """The case with small extents, equal ones still equal."""
    sizes = {1 << 24: 12, 1 << 22: 11, 1 << 20: 10, 16384: 16, 8192: 8, 4096: 4, 2048: 2, 1024: 5,
             32_000: 513}  # fmt: skip
    return KernelCase(
        case.op,
        tuple(
            s and Operand(tuple(sizes.get(n, n) for n in s.shape), s.dtype, permute=s.permute,
                          role=s.role, data=None)
            for s in case.srcs
        ),
        case.params,
    )  # fmt: skip


def arrays_of(node: Tensor) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.uniform(0.5, 2, s.shape).astype(s.dtype.storage) for s in node.live_srcs()]


OPS = {*rivals._UFUNCS, *rivals._REDUCTIONS, *rivals._FORMULAS, "argmax", "clamp", "cpy", "cont",
       "concat", "get_rows"}  # fmt: skip
HAS = {"f32", "f16", "i32"}  # of the types, CuPy
RIVALS = [
    c for c in all_cases() if c.op in OPS and c.params.get("type", 0) < 2
    and {measure.declare(c).dtype.name, *(s.dtype for s in c.srcs if s)} <= HAS
]  # fmt: skip


@pytest.mark.parametrize("case", RIVALS, ids=lambda c: c.name)
def test_a_rival_does_the_same(case: KernelCase) -> None:
    node = measure.declare(shrunk(case))
    arrays = arrays_of(node)
    out = np.full(node.shape, 7, node.dtype.storage)
    call = rivals.cupy_call(CUPY, node, arrays, out)
    if call is None:
        # Halves of one operand, a conversion on the way, a pattern repeated: numpy lacks them.
        assert case.note == "halves" or "f16" in case.name or "[2048,4096]" in case.name
        return
    returned = call()
    spec = op_spec(node.op or "")
    floats = [a if a.dtype.kind == "i" else a.astype(np.float32) for a in arrays]
    expected = spec.reference(*floats, **node.params)
    got = returned if node.op == "argmax" else out
    assert np.allclose(np.squeeze(got), np.squeeze(expected), rtol=2e-3)


def test_no_rival_where_the_operation_differs() -> None:
    table = np.zeros((4, 8), np.float16)
    for op, srcs in (("rms_norm", 1), ("soft_max", 1), ("gelu", 1)):
        node = SimpleNamespace(op=op, params={})
        assert rivals.cupy_call(CUPY, node, [table] * srcs, table) is None  # type: ignore[arg-type]
    looked_up: Any = SimpleNamespace(op="get_rows", params={})
    out = np.zeros((2, 8), np.float32)
    assert rivals.cupy_call(CUPY, looked_up, [table, np.zeros(2, int)], out) is None  # converts


def test_a_copy_is_the_drivers() -> None:
    case = next(c for c in all_cases() if c.name == "cpy f32[8192,8192] to f32")
    node, copied = measure.declare(case), []
    runtime = SimpleNamespace(memcpyDeviceToDevice=3, memcpyAsync=lambda *a: copied.append(a))
    device = SimpleNamespace(cupy=None, runtime=runtime, stream=SimpleNamespace(ptr=9))
    at = {node: SimpleNamespace(address=1000), node.srcs[0]: SimpleNamespace(address=5000)}
    memory = SimpleNamespace(locate=lambda owner: (at[owner], 0))
    found = rivals.find(SimpleNamespace(device=device), node, memory)  # type: ignore[arg-type]
    assert found is not None and found[0] == "memcpy"
    found[1]()
    assert copied == [(1000, 5000, 4 << 26, 3, 9)]


# -- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_peaks_are_those_of_a_gpu(gpu: Any) -> None:
    read, f32, int8, f16 = gpu.peaks()
    if not SANITIZED:
        assert 100 < read < 50_000 and 1_000 < f32 < 1_000_000
        assert int8 > f32 and f16 > 2 * f32
    assert gpu.device.name in gpu.describe()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "pattern",
    ["add f32[8192,8192] f32[8192]", "silu f16", "mul_mat f32[14336,4096] f32[8,", "sum f32",
     "cont f32[8192,8192]", "cpy f32[8192,8192]"],
)  # fmt: skip
def test_a_rival_on_the_gpu_does_the_same(gpu: Any, pattern: str) -> None:
    case = next(c for c in all_cases() if c.name.startswith(pattern))
    timer, node = KernelTimer(gpu), measure.declare(case)
    work, places = timer._compile(node, case.srcs)
    work.run()
    buffer, storage = places.at[node], dtype_by_name(node.dtype.name).storage
    ours = buffer.read(0, node.nbytes).view(storage).astype(np.float64)
    buffer.write(0, np.zeros(node.nbytes, np.uint8))
    found = gpu.rival(node, places)
    assert found is not None
    found[1]()
    theirs = buffer.read(0, node.nbytes).view(storage).astype(np.float64)
    assert np.sum((ours - theirs) ** 2) <= 1e-6 * np.sum(theirs**2)
    times = gpu.clock.cold(work, timer._flush, 3)
    assert len(times) == 3 and all(t > 0 for t in times)
