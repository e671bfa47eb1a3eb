"""The cases of `gguflow bench --kernels`, and how one is timed and held against the roofs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gguflow.engine.backends.cpu import CpuBackend
from gguflow.engine.backends.numpy import NumpyBackend
from gguflow.engine.graph import Operand, all_ops, op_spec
from gguflow.engine.kernel_bench import KernelCase, KernelTimer, all_cases, measure
from gguflow.engine.kernel_bench.cases import FLOATS, QUANTS
from gguflow.engine.profile.peaks import Peaks
from gguflow.kernels.cuda.launch import supports

CASES = list(all_cases())


@pytest.fixture(autouse=True)
def short_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "FLUSH_BYTES", 1 << 20)


def test_every_op_and_every_type_is_among_the_cases() -> None:
    of_sparse_layers = {s.name for s in all_ops() if "sparse" in s.name} | {"mul_mat_relu"}
    of_several = {"all_reduce", "all_reduce_add", "all_reduce_norm"}  # bench/cards.py
    without = of_sparse_layers | of_several
    assert {s.name for s in all_ops()} - {c.op for c in CASES} == without
    products = {(c.srcs[0].dtype, c.srcs[1].shape[0]) for c in CASES if "ffn_up" in c.name}  # type: ignore[union-attr]
    assert products >= {(t, m) for t in (*QUANTS, *FLOATS) for m in (1, 8, 512)}
    assert len({c.name for c in CASES}) == len(CASES)


def test_every_case_can_be_declared_and_has_a_cuda_kernel() -> None:
    for case in CASES:
        node = measure.declare(case)
        assert supports(node), case.name
        for s, operand in zip(node.srcs, case.srcs, strict=True):
            assert (s and s.shape) == (operand and operand.shape), case.name
        nbytes, flops = op_spec(case.op).cost_at(node, case.n_past)
        assert nbytes > 0 and flops >= 0


def test_the_roof_is_the_slower_of_memory_and_arithmetic() -> None:
    peaks = Peaks(read_gbs=100, f32_gflops=1000, int8_gops=4000, f16_gflops=8000)
    assert measure.roofline(peaks, 1_000_000, 1000, ["f32"]) == (10.0, "memory")
    assert measure.roofline(peaks, 1000, 50_000_000, ["f32"]) == (50.0, "compute")
    assert measure.roofline(peaks, 1000, 80_000_000, ["f32", "f16"]) == (10.0, "compute")
    assert measure.roofline(peaks, 1000, 80_000_000, ["f32", "q4_K"]) == (10.0, "compute")
    assert measure.roofline(Peaks(int8_gops=4000), 0, 40_000_000, ["q4_0"]) == (10.0, "compute")
    assert measure.roofline(Peaks(), 1000, 1000, ["f32"]) == (None, "")


def small(op: str, *srcs: Operand, **params: Any) -> KernelCase:
    return KernelCase(op, srcs, params, "small")


WEIGHT = Operand((64, 256), "q4_0", role="weight")


def test_a_case_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = KernelTimer(CpuBackend(1))
    t = timer.measure(small("mul_mat", WEIGHT, Operand((1, 256))))
    assert t.name == "mul_mat q4_0[64,256] f32[1,256] small"
    assert t.us > 0 and t.kernel.startswith("mul_mat.")
    assert t.bytes == 64 * 256 // 32 * 18 + 4 * 256 + 4 * 64 and t.flops == 2 * 64 * 256
    assert t.gbs == pytest.approx(t.bytes / t.us / 1e3)
    assert t.roof_us and t.of_roof == pytest.approx(t.roof_us / t.us)
    assert (t.rival, t.rival_us, t.speedup) == ("", None, None)
    assert KernelTimer(NumpyBackend()).measure(small("neg", Operand((3, 5)))).roof_us is None


@pytest.mark.parametrize(
    "case",
    [
        small("mul_mat", WEIGHT, Operand((2, 256))),
        small("cont", Operand((5, 3, 4), permute=(1, 0, 2))),
        small("add", Operand((4, 6)), Operand((6,))),
        small("get_rows", Operand((9, 32), "q8_0", role="weight"), Operand((2,), "i32", [8, 3])),
    ],
    ids=lambda c: c.op,
)
def test_what_is_timed_computes_the_op_on_random_data(case: KernelCase) -> None:
    """The operands are whole: neither zeros nor parts left out."""
    results = []
    for backend in (CpuBackend(1), NumpyBackend()):
        node = measure.declare(case)
        work, places = KernelTimer(backend)._compile(node, case.srcs)
        work.run()
        results.append(places.at[node].read(0, node.nbytes).view(np.float32).copy())
    ours, reference = results
    assert np.count_nonzero(ours) > 0.9 * ours.size
    assert np.sum((ours - reference) ** 2) <= 5e-4 * np.sum(reference**2)


class Timed(CpuBackend):
    """A backend with a clock of its own and a library beside it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.prepared: list[str] = []

    def peaks(self) -> Any:
        return (10.0, 100.0, 400.0, 800.0)

    @property
    def clock(self) -> Any:
        return self

    def prepare(self, nodes: list[Any]) -> None:
        self.prepared = [n.op for n in nodes]

    def cold(self, work: Any, flush: Any, repeats: int) -> list[float]:
        return [7.0] * repeats if callable(work) else [2.0, 3.0, 100.0]

    def rival(self, node: Any, places: Any) -> tuple[str, Callable[[], None]]:
        return "library", lambda: None


def test_a_backend_with_a_clock_and_a_rival() -> None:
    backend = Timed()
    timer = KernelTimer(backend)
    case = small("neg", Operand((2, 4)))
    timer.prepare([case])
    t = timer.measure(case)
    assert backend.prepared == ["neg"]
    assert (t.us, t.rival, t.rival_us, t.speedup) == (3.0, "library", 7.0, pytest.approx(7 / 3))
    assert t.roof_us == pytest.approx(64 / 10 / 1e3) and t.bound == "memory"
