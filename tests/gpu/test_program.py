"""How a CUDA program starts, on a device that only takes notes: what is loaded, launched, captured
and replayed, and when."""

from __future__ import annotations

from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gguflow.engine.ops  # noqa: F401  (registers them)
from gguflow.engine.backends.base import Flag, Meets, UnsupportedStepError
from gguflow.engine.backends.cuda import CudaError
from gguflow.engine.backends.cuda import program as program_module
from gguflow.engine.backends.cuda.device import CudaDevice
from gguflow.engine.backends.cuda.memory import CudaBuffer
from gguflow.engine.backends.cuda.program import CudaProgram
from gguflow.engine.compile import Meeting, Recv, Send
from gguflow.engine.graph import F16, F32, Graph, Tensor
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.kernels.cuda.launch import DeviceInfo


class CUDARuntimeError(RuntimeError):
    """CuPy's."""


class Stream:
    """Work goes to the log, or into what is being captured."""

    ptr = 0

    def __init__(self) -> None:
        self.log: list[str] = []
        self.captured: list[str] | None = None

    def put(self, what: str) -> None:
        (self.log if self.captured is None else self.captured).append(what)

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...

    def begin_capture(self) -> None:
        self.captured = []

    def end_capture(self) -> Any:
        graph, self.captured = self.captured, None
        return SimpleNamespace(launch=lambda stream: stream.put(f"graph of {graph}"))


class Bound:
    def __init__(self, name: str, stream: Stream) -> None:
        self.issue = lambda: stream.put(name)


class BoundProduct(Bound):
    """A library's."""

    def __init__(self, gemm: Gemm, stream: Stream) -> None:
        self.gemm = gemm
        self.issue = lambda to=0: stream.put("product to spare memory" if to else "product")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(program_module, "BoundGemm", BoundProduct)
    stream = Stream()
    place = iter(range(1 << 20, 1 << 40, 1 << 20))
    device = SimpleNamespace(
        info=DeviceInfo(), index=0, stream=stream, use=lambda: None,
        name="Imaginary GPU",
        runtime=SimpleNamespace(memsetAsync=lambda *a: None, CUDARuntimeError=CUDARuntimeError),
        cupy=SimpleNamespace(cuda=SimpleNamespace(
            alloc=lambda n: SimpleNamespace(ptr=next(place)),
            memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        )),
        copy=None, synchronize=lambda: stream.put("wait"), is_elsewhere=lambda address: False,
        event=lambda: SimpleNamespace(record=lambda of: of.put("record")),
        wait=lambda event: stream.put("wait for what was recorded"),
    )  # fmt: skip
    device.told = MethodType(CudaDevice.told, device)
    prepared: set[Any] = set()

    def bind(step: Any) -> Bound:
        if isinstance(step, Gemm):
            return BoundProduct(step, stream)
        assert step.kernel in prepared, "bound before it was loaded"
        return Bound(step.kernel.entry.split("<")[0], stream)

    modules = SimpleNamespace(prepare=prepared.update, bind=bind)
    memory = SimpleNamespace(scratch=lambda n: CudaBuffer(device, n))  # type: ignore[arg-type]
    return SimpleNamespace(name="cuda:0", device=device, modules=modules, memory=memory, n_made=0)


def product(g: Graph | None = None) -> Tensor:
    g = g or Graph()
    return g.mul_mat(g.weight("w", F16, (64, 64)), g.input("x", F32, (512, 64)), name="y")


class Places:
    rows: dict[Tensor, str] = {}

    def __init__(self, backend: Any) -> None:
        self.backend, self.at = backend, {}  # type: ignore[var-annotated]

    def locate(self, owner: Tensor) -> tuple[Any, int]:
        if owner not in self.at:
            self.at[owner] = CudaBuffer(self.backend.device, owner.nbytes)
        return self.at[owner], 0

    def is_packed(self, owner: Tensor) -> bool:
        return False


def taken(backend: Any) -> list[str]:
    """What was put into the stream since the last call."""
    log, backend.device.stream.log = backend.device.stream.log, []
    return log


def test_the_first_run_launches_the_second_captures(backend: Any) -> None:
    program = CudaProgram(backend, [product()], Places(backend), Meets())
    assert taken(backend) == []
    program.start()
    first = taken(backend)
    assert "product" in first and "wait" not in first
    assert program.finish() is None and taken(backend) == ["wait"]
    for _ in range(2):
        program.run()
        assert taken(backend) == [f"graph of {first}", "wait"]


def test_a_program_that_meets_has_all_loaded_and_is_captured_at_once(backend: Any) -> None:
    y = product()
    there = Meeting(0, "cpu", "cuda:0", y, y, [y])
    back = Meeting(1, "cuda:0", "cpu", y, y, [y])
    flags = {m: Flag(64 * (m.index + 1), 0, m.index + 1, 10**9) for m in (there, back)}
    program = CudaProgram(backend, [Recv(there), y, Send(back)], Places(backend), Meets(flags))
    assert taken(backend) == ["product", "link_signal", "link_wait", "wait"]
    program.start()
    graph, end = taken(backend)  # nothing beside it that might wait for the device
    assert end == "record"
    inside = graph.removeprefix("graph of ")
    assert inside.startswith("['link_wait'") and inside.endswith("'link_signal']")
    program.finish()
    program.run()
    wait = "wait for what was recorded"  # and not for a run of another plan behind it
    assert taken(backend) == [wait, graph, "record", wait]
    assert len(program.kernels) == 3


def test_what_is_loaded_writes_into_no_other_devices_memory(backend: Any) -> None:
    """Which may be in the middle of a run."""
    y = product()
    flags = {(m := Meeting(0, "cuda:0", "cuda:1", y, y, [], 0, [y])): Flag(64, 0, 1, 10**9)}
    places = Places(backend)
    there, _ = places.locate(y)
    backend.device.is_elsewhere = lambda address: address == there.address
    program = CudaProgram(backend, [y, Send(m)], places, Meets(flags))
    assert taken(backend) == ["product to spare memory", "link_signal", "link_wait", "wait"]
    program.run()
    assert taken(backend)[0].startswith("graph of ['round_rows', 'product'")


def test_a_timed_run_reads_the_clock_around_every_step(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = np.array([5, 9], np.uint64)
    monkeypatch.setattr(CudaBuffer, "read", lambda self, at, n: readings.view(np.uint8))
    program = CudaProgram(backend, [product()], Places(backend), Meets())
    program.run()
    taken(backend)
    ticks = program.run_timed()
    assert not ticks.of_host and ticks.ns.tolist() == [5, 9]
    graph, end = taken(backend)
    assert graph.startswith("graph of ['timestamp'") and graph.endswith("'timestamp']")
    assert end == "wait"


def test_loading_runs_no_op_but_products(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recurrent state would move on twice at the first step."""
    g = Graph()
    y = product(g)
    steps = [y, g.silu(y)]
    monkeypatch.setattr(CudaBuffer, "read", lambda self, at, n: np.zeros(4, np.uint64).view("u1"))
    program = CudaProgram(backend, steps, Places(backend), Meets())
    program.run_timed()
    loaded, wait, graph, end = taken(backend)
    assert loaded == "product" and graph.startswith("graph of ['timestamp'") and wait == end

    captures: list[Any] = []
    monkeypatch.setattr(
        program_module, "CudaTokenLoop", lambda *args: captures.append(args[1].capture)
    )
    program = CudaProgram(backend, steps, Places(backend), Meets())
    program.token_loop({})
    captures[0]([Bound("advance", backend.device.stream)])
    product_alone, wait = taken(backend)
    assert product_alone == "product" and wait == "wait"


def test_what_it_cannot_run_is_refused_by_name(backend: Any) -> None:
    y = product()
    step = Send(Meeting(0, "cuda:0", "cpu", y, y, [y]))
    with pytest.raises(UnsupportedStepError, match="cuda:0 has no way to run send of y"):
        CudaProgram(backend, [step], Places(backend), Meets())


def failing(*_: Any) -> None:
    raise CUDARuntimeError("cudaErrorLaunchFailure: unspecified launch failure")


def test_a_run_that_is_not_started_is_an_error_of_the_gpu(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = CudaProgram(backend, [product()], Places(backend), Meets())
    program.run()
    for what in ("use", "copy"):  # where a device that is lost says so first
        with monkeypatch.context() as m:
            m.setattr(backend.device, what, failing)
            program._bring = [lambda: backend.device.copy(0, 0, 0)]
            with pytest.raises(CudaError, match="Imaginary GPU: cudaErrorLaunchFailure"):
                program.start()
        program._bring = []
    program.run()
    program._graph.launch = failing
    with pytest.raises(CudaError, match="Imaginary GPU: cudaErrorLaunchFailure"):
        program.start()


def test_an_op_that_fails_while_captured_is_told_and_captured_again(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = CudaProgram(backend, [product()], Places(backend), Meets())
    program.run()
    taken(backend)
    stream, end = backend.device.stream, backend.device.stream.end_capture

    def fails() -> None:
        raise CudaError("the op's own")

    def broken() -> None:
        end()
        raise CUDARuntimeError("cudaErrorStreamCaptureInvalidated")

    with monkeypatch.context() as m:
        m.setattr(program._ops[0][0], "issue", fails)
        m.setattr(stream, "end_capture", broken)
        with pytest.raises(CudaError, match="the op's own"):
            program.run()
    assert stream.captured is None and taken(backend) == []
    program.run()
    graph, wait = taken(backend)
    assert graph.startswith("graph of") and wait == "wait"


def test_several_ops_are_one_launch_and_have_rows_of_their_own(backend: Any) -> None:
    g = Graph()
    x = g.rms_norm_mul(g.input("x", F32, (2, 64)), g.weight("norm", F32, (64,)), eps=1e-5)
    logits = g.mul_mat(g.weight("w", F16, (8, 64)), x)
    ids = g.route(logits, n_used=2, score="softmax")
    shares = g.route_weights(logits, ids, score="softmax")
    y = g.silu(shares)
    program = CudaProgram(backend, [x, logits, ids, shares, y], Places(backend), Meets())
    assert program.kernels[:4] == ["router<f16>", "", "", ""] and len(program.kernels) == 5
    program.start()
    assert [name for name in taken(backend) if name != "mirror"][:2] == ["router", "map_dense"]

    program = CudaProgram(backend, [x, logits, ids, y], Places(backend), Meets())  # without shares
    assert program.kernels[0] != "router<f16>" and "" not in program.kernels
