"""What the native sparse ops promise beyond the oracle's tolerance, on every instruction set.

A layer split over two devices adds up to the whole one; skipping nothing is the dense layer; a
token's result is the same to the bit whatever is computed beside it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from harness import build_case, encoded, isas, nmse, reference, results_of_runs, run_on
from hypothesis import given, settings
from hypothesis import strategies as st

from gguflow.engine.backends.cpu import backend as cpu_backend
from gguflow.engine.backends.cpu.backend import CpuBackend
from gguflow.engine.backends.cpu.native import runnable_isas
from gguflow.engine.graph import LEAST_POSITIVE, Case, Operand, dtype_by_name, op_spec
from gguflow.engine.ops._sparse import TYPES
from gguflow.engine.quants import decode

ISAS = runnable_isas()


@pytest.fixture(autouse=True)
def several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_backend, "SINGLE_THREAD_BYTES", 0)


@cache
def _backend(isa: str) -> CpuBackend:
    return CpuBackend(n_threads=3, isa=isa)


class Layer:
    """Random gate, up and down_t of one type, or up with a bias and down_t; x [m, k] and scores
    [m, n_ff]."""

    def __init__(self, dtype: str, n_ff: int, m: int, seed: int, gated: bool = True) -> None:
        self.gated = gated
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        block = dtype_by_name(dtype).block
        k = 2 * block if block > 1 else 75
        self.weights = [
            self.rng.standard_normal((n_ff, k)).astype(np.float32) / k**0.5 for _ in range(3)
        ]
        self.x = self.rng.standard_normal((m, k)).astype(np.float32)
        self.idx = self.rng.standard_normal((m, n_ff)).astype(np.float32)
        self.bias = [] if gated else [self.rng.standard_normal(n_ff).astype(np.float32)]

    def decoded(self) -> list[np.ndarray]:
        """The weights' values as the type holds them."""
        t = dtype_by_name(self.dtype)
        return [decode(t, encoded(t, w), w.shape) for w in self.weights]

    def rows(self, ids: np.ndarray | slice) -> list[Operand | None]:
        found = [Operand(w[ids].shape, self.dtype, w[ids], role="weight") for w in self.weights]
        return [found[0] if self.gated else None, *found[1:]]


def operand(x: np.ndarray | None) -> Operand | None:
    kind = "i32" if x is not None and x.dtype == np.int32 else "f32"
    return None if x is None else Operand(x.shape, kind, x)


def run(isa: str, op: str, *srcs: Any, threads: int = 2, **params: Any) -> np.ndarray:
    operands = tuple(s if isinstance(s, Operand) else operand(s) for s in srcs)
    case = build_case(op_spec(op), Case(operands, params), np.random.default_rng(0))
    return run_on(_backend(isa), case, n_threads=threads)


@settings(max_examples=25, deadline=None)
@given(
    dtype=st.sampled_from(TYPES),
    isa=st.sampled_from(ISAS),
    n_ff=st.integers(1, 80),
    m=st.integers(1, 5),
    share=st.floats(0, 1),
    threshold=st.sampled_from([-np.inf, -0.5, 0.0, 1.0]),
    exact=st.booleans(),
    gated=st.booleans(),
    seed=st.integers(0, 99),
)
def test_two_halves_add_up(
    dtype: str, isa: str, n_ff: int, m: int, share: float, threshold: float, exact: bool,
    gated: bool, seed: int,
) -> None:  # fmt: skip
    """A bucket on one device and the rest on the other: their sum is the unsplit layer's."""
    layer = Layer(dtype, n_ff, m, seed, gated)
    there = (layer.rng.uniform(size=n_ff) < share).astype(np.int32)
    bucket = np.flatnonzero(there).astype(np.int32)
    idx = None if exact else layer.idx
    all_rows, bias = layer.rows(slice(None)), layer.bias
    how = {"threshold": threshold}
    whole = run(isa, "sparse_ffn", *all_rows, layer.x, idx, None, None, *bias, **how)
    parts = run(isa, "sparse_ffn", *all_rows, layer.x, idx, None, there, *bias, **how)
    if len(bucket):
        rows = layer.rows(bucket)
        parts = parts + run(isa, "sparse_ffn", *rows, layer.x, idx, bucket, None, *bias, **how)
    np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-5)


def dense(layer: Layer) -> np.ndarray:
    gate, up, down = layer.decoded()
    if not layer.gated:
        h = reference("mul_mat", up, layer.x) + layer.bias[0]
        return np.maximum(h, 0).astype(np.float64) @ down.astype(np.float64)
    h = reference("reglu", reference("mul_mat", gate, layer.x), reference("mul_mat", up, layer.x))
    return h.astype(np.float64) @ down.astype(np.float64)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("m", [1, 7])
def test_skipping_nothing_is_the_dense_layer(isa: str, dtype: str, m: int) -> None:
    layer = Layer(dtype, 171, m, 3)
    rows, x = layer.rows(slice(None)), layer.x
    layer.idx[:, ::7] = np.nan
    limit = 1e-7 if dtype in ("f32", "f16", "bf16") else 5e-4
    lowest = run(isa, "sparse_ffn", *rows, x, layer.idx, threshold=-np.inf)
    assert nmse(lowest, dense(layer)) < limit
    # The exact mode, which looks at the gate alone, as one op and as the parts.
    assert run(isa, "sparse_ffn", *rows, x).tobytes() == lowest.tobytes()
    tiny: dict[str, Any] = {"threshold": float(np.finfo(np.float32).tiny)}
    gate = run(isa, "mul_mat_sparse", rows[0], x)
    up = run(isa, "mul_mat_sparse", rows[1], x, gate, **tiny)
    parts = run(isa, "axpy_sparse", rows[2], np.maximum(gate, 0) * up, gate, **tiny)
    assert parts.tobytes() == lowest.tobytes()


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("m", [1, 7, 40])
def test_skipping_nothing_is_the_dense_layer_without_a_gate(isa: str, dtype: str, m: int) -> None:
    layer = Layer(dtype, 171, m, 3, gated=False)
    rows, x, bias = layer.rows(slice(None)), layer.x, layer.bias
    layer.idx[:, ::7] = np.nan
    limit = 1e-7 if dtype in ("f32", "f16", "bf16") else 5e-4
    lowest = run(isa, "sparse_ffn", *rows, x, layer.idx, None, None, *bias, threshold=-np.inf)
    assert nmse(lowest, dense(layer)) < limit
    whole = run(isa, "sparse_ffn", *rows, x, None, None, None, *bias)
    assert whole.tobytes() == lowest.tobytes()
    up = run(isa, "mul_mat_sparse", rows[1], x)
    h = np.maximum(up + bias[0], 0)
    parts = run(isa, "axpy_sparse", rows[2], h, h, threshold=LEAST_POSITIVE)
    assert parts.tobytes() == lowest.tobytes()


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", [*TYPES, "q5_1", "q3_K"])
def test_a_token_does_not_depend_on_its_neighbours(isa: str, dtype: str) -> None:
    layer = Layer(dtype, 300, 70, 4)
    layer.idx -= 1
    rows = layer.rows(slice(None))
    h = np.abs(layer.idx)
    alone = [None, *rows[1:]]
    ops: list[tuple[str, list[Any], np.ndarray]] = [
        ("mul_mat_sparse", rows[:1], layer.x),
        ("axpy_sparse", rows[:1], h),
        ("sparse_ffn", rows, layer.x),
        ("sparse_ffn", alone, layer.x),
    ]
    for op, weights, x in ops:
        whole = run(isa, op, *weights, x, layer.idx)
        for begin, end in ((0, 1), (33, 34), (31, 33), (60, 70)):
            for threads in (1, 3):
                part = run(isa, op, *weights, x[begin:end], layer.idx[begin:end], threads=threads)
                assert part.tobytes() == whole[begin:end].tobytes(), f"{op}, tokens from {begin}"


@pytest.mark.parametrize("isa", isas())
def test_what_is_skipped_is_not_read(isa: str) -> None:
    """Rows of skipped neurons may hold anything, and so may h where it does not count."""
    layer = Layer("f32", 40, 2, 5)
    on = layer.idx[:1] >= 0
    layer.idx[1] = layer.idx[0]
    want = run(isa, "sparse_ffn", *layer.rows(slice(None)), layer.x, layer.idx)
    for w in layer.weights:
        w[~on[0]] = np.nan
    got = run(isa, "sparse_ffn", *layer.rows(slice(None)), layer.x, layer.idx)
    assert got.tobytes() == want.tobytes()
    h = np.where(on, 1.0, np.nan).astype(np.float32).repeat(2, axis=0)
    down = layer.rows(slice(None))[2]
    assert np.isfinite(run(isa, "axpy_sparse", down, h, layer.idx)).all()


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("m", [1, 3])
def test_a_nan_in_the_input_shows(isa: str, m: int) -> None:
    layer = Layer("f32", 40, m, 6)
    layer.x[0, 5] = np.nan
    got = run(isa, "sparse_ffn", *layer.rows(slice(None)), layer.x, layer.idx)
    assert np.isnan(got[0]).all() and np.isfinite(got[1:]).all()


@pytest.mark.parametrize("n_threads", [2, 3, 7])
@pytest.mark.parametrize("isa", isas())
def test_phases_of_many_tokens_meet_at_every_run(isa: str, n_threads: int) -> None:
    """Products read what all threads have converted, also where processors are fewer."""
    w = Operand((64, 512), "q4_K", role="weight")
    built = build_case(
        op_spec("sparse_ffn"), Case((w, w, w, Operand((40, 512)))), np.random.default_rng(4)
    )
    backend = CpuBackend(n_threads=n_threads, isa=isa)
    (found,) = results_of_runs(backend, built, 100)
    assert found == run_on(backend, built, n_threads=1).tobytes()
