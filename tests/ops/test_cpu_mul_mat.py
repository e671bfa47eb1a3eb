"""What the native mul_mat promises beyond the oracle's tolerance, on every instruction set.

A column's result is the same to the bit whatever is computed beside it; packed weights are
multiplied exactly but for the rounding of the activations; packing loses nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import Built, build_case, encoded, isas, nmse, random_blocks, run_on

from gguflow.engine.backends.cpu import backend as cpu_backend
from gguflow.engine.backends.cpu.backend import CpuBackend
from gguflow.engine.backends.cpu.native import runnable_isas
from gguflow.engine.graph import Case, Operand, dtype_by_name, op_spec
from gguflow.engine.quants import decode

FLOATS = ("f32", "f16", "bf16")
QUANTS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_nl",
          "iq4_xs", "tq2_0", "mxfp4", "nvfp4")  # fmt: skip
# Types whose rows stay as they lie in the file.
GRIDS = ("tq1_0", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
# Around the widths of the tiles that columns are cut into.
COLUMNS = (*range(1, 14), 15, 16, 17, 23, 33, 149)


@pytest.fixture(params=isas())
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CpuBackend:
    monkeypatch.setattr(cpu_backend, "SINGLE_THREAD_BYTES", 0)
    return CpuBackend(n_threads=2, isa=request.param)


def weight(dtype: str, n: int, k: int, seed: int = 1) -> Operand:
    """Deviation 1/sqrt(k), so that products have deviation one."""
    w = np.random.default_rng(seed).standard_normal((n, k)) / np.sqrt(k)
    return Operand((n, k), dtype, w.astype(np.float32), role="weight")


def decoded(w: Operand) -> np.ndarray:
    """The values of a weight as its type holds them."""
    dtype = dtype_by_name(w.dtype)
    return decode(dtype, encoded(dtype, w.data), w.shape)


def f32(x: np.ndarray) -> Operand:
    return Operand(x.shape, "f32", x)


def columns(m: int, k: int, seed: int = 2) -> np.ndarray:
    """Rows of quite different size, one of them zero where there are many."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, k)) * np.exp(rng.standard_normal((m, 1)) * 2)
    if m > 6:
        x[6] = 0
    return x.astype(np.float32)


def built(op: str, *srcs: Operand) -> Built:
    """Without the oracle: what results are held to here is more exact, or another run."""
    return build_case(op_spec(op), Case(srcs), np.random.default_rng(0), oracle=False)


def run(backend: CpuBackend, op: str, *srcs: Operand, packed: bool, threads: int = 2) -> np.ndarray:
    case = built(op, *srcs)
    if packed:
        leaf = case.graph.leaves["src0"]
        assert backend.packed_bytes(leaf, [case.node]) >= leaf.nbytes
    return run_on(backend, case, n_threads=threads, packed=packed)


def as_kernels_round(x: np.ndarray) -> np.ndarray:
    """x in steps of amax / 127 over blocks of 32."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    amax = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), amax, out=np.zeros_like(amax), where=amax > 0)
    q = np.rint(blocks * inverse).astype(np.float64)
    return (q * (amax / np.float32(127))).reshape(x.shape)


@pytest.mark.parametrize("dtype", FLOATS + QUANTS)
def test_a_column_does_not_depend_on_its_neighbours(backend: CpuBackend, dtype: str) -> None:
    k, n = (512, 37) if dtype in QUANTS else (1061, 37)
    w, x = weight(dtype, n, k), columns(max(COLUMNS), k)
    for packed in (False, True) if dtype in QUANTS else (False,):
        whole = run(backend, "mul_mat", w, f32(x), packed=packed)
        for m in COLUMNS:
            for threads in (1, 2):
                part = run(backend, "mul_mat", w, f32(x[-m:]), packed=packed, threads=threads)
                assert part.tobytes() == whole[-m:].tobytes(), f"{m} columns, {threads} threads"


@pytest.mark.skipif("amx" not in runnable_isas(), reason="this machine does not run amx")
@pytest.mark.parametrize("dtype", QUANTS)
def test_the_matrix_unit_changes_no_bit(dtype: str) -> None:
    """It leaves whole numbers; what is done with them is AVX-512's in the same order."""
    w, x = weight(dtype, 37, 1280), columns(149, 1280)
    ours, theirs = (
        run(CpuBackend(n_threads=2, isa=isa), "mul_mat", w, f32(x), packed=True)
        for isa in ("amx", "avx512bf16")
    )
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("n", [1, 15, 16, 17, 160])
@pytest.mark.parametrize("dtype", QUANTS)
def test_only_activations_are_rounded(backend: CpuBackend, dtype: str, n: int) -> None:
    w, x = weight(dtype, n, 768), columns(9, 768)
    exact = as_kernels_round(x) @ decoded(w).astype(np.float64).T
    packed = run(backend, "mul_mat", w, f32(x), packed=True)
    assert nmse(packed, exact) < 1e-12
    # A matrix as it is in the file is packed on the way.
    assert run(backend, "mul_mat", w, f32(x), packed=False).tobytes() == packed.tobytes()
    # Rows that lie apart are turned into f32 and nothing is rounded.
    apart = replace(w, pad=(0, dtype_by_name(dtype).block))
    exact = x.astype(np.float64) @ decoded(w).astype(np.float64).T
    assert n == 1 or nmse(run(backend, "mul_mat", apart, f32(x), packed=False), exact) < 1e-12


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rounding_to_halves_stays_small(backend: CpuBackend, dtype: str) -> None:
    """Where the machine multiplies bf16, both operands are rounded to it, 2^-9 at most each; where
    it multiplies float16 into float32, columns are, by 2^-12 of what is large in them."""
    w, x = weight(dtype, 50, 1500), columns(9, 1500)
    exact = x.astype(np.float64) @ decoded(w).astype(np.float64).T
    limit = {("amx", "bf16"): 1e-5, ("avx512bf16", "bf16"): 1e-5, ("i8mm", "f16"): 1e-7}.get(
        (backend.lib.isa, dtype), 1e-12
    )
    assert nmse(run(backend, "mul_mat", w, f32(x), packed=False), exact) < limit


@pytest.mark.parametrize("largest", [1e-37, 1e-8, 1e5, 1e30])
def test_columns_of_any_size_times_f16(backend: CpuBackend, largest: float) -> None:
    """What rounds columns to float16 neither overflows nor loses small ones, and a column's result
    only scales with it."""
    w, x = weight("f16", 19, 133), columns(3, 133)
    x *= np.float32(largest) / np.abs(x).max(axis=1, keepdims=True)
    exact = x.astype(np.float64) @ decoded(w).astype(np.float64).T
    got = run(backend, "mul_mat", w, f32(x), packed=False).astype(np.float64)
    assert nmse(got / largest, exact / largest) < 1e-7


@pytest.mark.parametrize("dtype", QUANTS)
def test_extreme_bit_patterns(backend: CpuBackend, dtype: str) -> None:
    """Blocks of random bytes: every quant, scale and minimum, not only those a quantizer picks."""
    k, n, m = 512, 16, 5
    d = dtype_by_name(dtype)
    rng = np.random.default_rng(5)
    raw = rng.integers(0, 256, (n, k // d.block, d.nbytes), dtype=np.uint8)
    halves = {"q4_1": (0, 2), "q5_1": (0, 2), "q2_K": (80, 82), "q3_K": (108,), "q4_K": (0, 2),
              "q5_K": (0, 2), "q6_K": (208,), "tq2_0": (64,), "mxfp4": (), "nvfp4": ()
              }.get(dtype, (0,))  # fmt: skip
    if dtype == "mxfp4":
        raw[..., 0] = rng.integers(100, 140, raw.shape[:2])  # sums of all powers would overflow
    for at in halves:
        scale = rng.standard_normal(raw.shape[:2]).astype(np.float16)
        raw[..., at : at + 2] = scale[..., None].view(np.uint8)
    # The largest activations everywhere: sums as large as they get.
    x = np.where(rng.random((m, k)) < 0.5, -1, 1).astype(np.float32)
    x[0] = 1
    case = built("mul_mat", Operand((n, k), dtype, 0.0, role="weight"), f32(x))
    case.feeds["src0"] = raw.reshape(-1)
    exact = x.astype(np.float64) @ decode(d, raw.reshape(n, -1), (n, k)).astype(np.float64).T
    assert nmse(run_on(backend, case, packed=True), exact) < 1e-12
    assert nmse(run_on(backend, case, packed=False), exact) < 1e-12


@pytest.mark.parametrize("n", [1, 16, 35])
@pytest.mark.parametrize("dtype", QUANTS)
def test_packing_loses_nothing(
    backend: CpuBackend, monkeypatch: pytest.MonkeyPatch, dtype: str, n: int
) -> None:
    """Rows looked up in a packed table are those of the file to the bit, for any bytes."""
    d = dtype_by_name(dtype)
    k = 2 * d.block
    raw = np.random.default_rng(6).integers(0, 256, (n, 2 * d.nbytes), dtype=np.uint8)
    table, ids = Operand((n, k), dtype, 0.0, role="weight"), Operand((n,), "i32", range(n))
    case = built("get_rows", table, ids)
    case.feeds["src0"] = raw.reshape(-1)
    plain = run_on(backend, case)
    # Only a weight that is also multiplied by is worth packing.
    user = built("mul_mat", table, f32(columns(1, k))).node
    packed_bytes = backend.packed_bytes
    monkeypatch.setattr(backend, "packed_bytes", lambda w, users: packed_bytes(w, [user]))
    packed = backend.load_weight(case.graph.leaves["src0"], case.feeds["src0"], True)
    assert packed.nbytes == -(-n // 16) * 16 * raw.shape[1]
    assert n == 1 or packed.host()[: raw.size].tobytes() != raw.tobytes()
    assert run_on(backend, case, packed=True).tobytes() == plain.tobytes()


@pytest.mark.parametrize("dtype", GRIDS)
def test_rows_of_grids(backend: CpuBackend, dtype: str) -> None:
    """Nothing but the activations is rounded, and a column does not depend on its neighbours."""
    k, n, m = 768, 37, 33
    d = dtype_by_name(dtype)
    x = columns(m, k)
    raw = random_blocks(d, n * k // 256, np.random.default_rng(7))
    if dtype == "tq1_0":
        raw[:, 52:] = np.float16(0.5).reshape(1).view(np.uint8)

    def run_rows(columns: np.ndarray, threads: int) -> np.ndarray:
        case = built("mul_mat", Operand((n, k), dtype, role="weight"), f32(columns))
        case.feeds["src0"] = raw.reshape(-1)
        return run_on(backend, case, n_threads=threads)

    whole = run_rows(x, 2)
    values = decode(d, raw, (n, k)).astype(np.float64)
    assert nmse(whole, as_kernels_round(x) @ values.T) < 1e-12
    for count in COLUMNS:
        for threads in (1, 2):
            part = run_rows(x[-count:], threads)
            assert part.tobytes() == whole[-count:].tobytes(), f"{count} columns, {threads} threads"


@pytest.mark.parametrize("dtype", FLOATS + QUANTS)
def test_fused_ops_give_the_bits_of_their_parts(backend: CpuBackend, dtype: str) -> None:
    gate, up, x = weight(dtype, 37, 512), weight(dtype, 37, 512, seed=3), f32(columns(18, 512))
    r = columns(18, 37, seed=4)
    packed = dtype in QUANTS
    product = run(backend, "mul_mat", gate, x, packed=packed)
    added = run(backend, "mul_mat_add", gate, x, f32(r), packed=packed)
    assert added.tobytes() == (product + r).tobytes()
    biased = run(backend, "mul_mat_add", gate, x, f32(r[0]), packed=packed)
    assert biased.tobytes() == (product + r[0]).tobytes()
    other = run(backend, "mul_mat", up, x, packed=packed)
    unfused = run(backend, "swiglu", f32(product), f32(other), packed=False)
    fused = run(backend, "mul_mat_swiglu", gate, up, x, packed=packed)
    assert fused.tobytes() == unfused.tobytes()


def test_swiglu_of_two_types_packed(backend: CpuBackend) -> None:
    """Each weight has its own form of the activations, or shares it."""
    x = columns(5, 512)
    for first, second in (
        ("q4_K", "q6_K"),
        ("q8_0", "q4_0"),
        ("q4_K", "q5_K"),
        ("iq4_nl", "tq1_0"),
    ):
        gate, up = weight(first, 19, 512), weight(second, 19, 512, seed=3)
        case = built("mul_mat_swiglu", gate, up, f32(x))
        g, u = (as_kernels_round(x) @ decoded(w).astype(np.float64).T for w in (gate, up))
        exact = g / (1 + np.exp(-g)) * u
        assert nmse(run_on(backend, case, packed=True), exact) < 1e-11


@pytest.mark.parametrize("dtype", QUANTS + GRIDS[:1])
def test_columns_that_are_not_finite(backend: CpuBackend, dtype: str) -> None:
    """NaN and infinities reach every product of their column, whatever stands beside them in it,
    and no other column."""
    w, x = weight(dtype, 37, 512), columns(9, 512)
    for packed in (False, True) if dtype in QUANTS else (False,):
        whole = run(backend, "mul_mat", w, f32(x), packed=packed)
        bad = x.copy()
        bad[1, 3], bad[4, 500], bad[5, 64], bad[7, 17:19] = np.nan, np.inf, -np.inf, (np.nan, 1e38)
        got = run(backend, "mul_mat", w, f32(bad), packed=packed)
        rows = [1, 4, 5, 7]
        assert not np.isfinite(got[rows]).any()
        assert np.delete(got, rows, 0).tobytes() == np.delete(whole, rows, 0).tobytes()
