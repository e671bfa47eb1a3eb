"""mul_mat_integers.cu: quantized weights times many columns, with the bits that a column has alone
(mul_mat_one.cu) and among a few (mul_mat_few.cu)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import Built, nmse, run_on
from kernel_list import EQUAL
from sizes import fewer
from test_mul_mat_columns import EPS, build, declared, heads, made_by, weight
from test_mul_mat_few import TYPES, norm
from test_mul_mat_one import MIXED, OPS

from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import F32, Graph, Operand, dtype_by_name
from gguflow.kernels.cuda.launch import scratch_bytes, supports
from gguflow.models.shapes import random_rows

# Of columns beside which those of 257 are compared.
COUNTS = fewer((1, 8, 9, 17, 65), (1, 2, 8, 9, 16, 17, 33, 64, 65, 128, 200))
MOST = 257
SHAPES_8B = [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)]
TOGETHER = (2048, 1024)  # of which 512 columns go to pairs of blocks
FILES = {"columns_integers.cu", "mul_mat_integers.cu"}


@pytest.fixture(scope="module")
def gpu(gpu: Any) -> Any:
    """The backend on which a column has the same bits beside any number of others."""
    return find_backend("cuda", {"equal_bits": True})


def operands(op: str, x: Operand, n: int, k: int, dtype: str, m: int) -> tuple[Operand, ...]:
    """Of which those of one op are the same for every m."""
    ws = [weight(n, k, dtype) for _ in range(2 if op.endswith("swiglu") else 1)]
    r = np.random.default_rng(5).standard_normal((512, n)).astype(np.float32)
    beside = [Operand((m, n), "f32", r[:m])] if op == "mul_mat_add" else []
    return (x, norm(k), *ws) if op.startswith("norm_") else (*ws, x, *beside)


def params_of(op: str) -> dict[str, float]:
    return EPS if op.startswith("norm_") else {}


@pytest.mark.slow  # test_compile.py has some of every kind
@pytest.mark.parametrize("dtype", TYPES)
def test_compiles(nvrtc: Any, dtype: str) -> None:
    kernels = {
        s.kernel
        for m in (20, 300)
        for s in made_by(build("mul_mat", weight(8, 512, dtype), Operand((m, 512))).node, EQUAL)
    }
    assert {k.source for k in kernels} == FILES
    for kernel in kernels:
        (name,) = nvrtc.compile_source(kernel.source, [kernel.entry], "sm_90", kernel.options).names
        assert name.startswith("_Z")


@pytest.mark.parametrize("dtype", TYPES)
def test_only_where_it_is_asked_for(dtype: str) -> None:
    k = 512
    for m in (16, 17, 256, 290):
        nodes = [heads((dtype,) * 3, m, "f16", "norm", k, declared)]
        nodes += [
            declared(op, *operands(op, Operand((m, k)), 8, k, dtype, m), **params_of(op))
            for op in OPS
        ]
        for node in nodes:
            assert supports(node, equal_bits=True)
            assert ({s.kernel.source for s in made_by(node, EQUAL)} == FILES) == (m > 16)
            if supports(node):
                faster = replace(EQUAL, equal_bits=False)
                assert not FILES & {s.kernel.source for s in made_by(node, faster)}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_only_where_the_instructions_are(arch: str) -> None:
    node = build("mul_mat", weight(8, 512, "q4_0"), Operand((40, 512))).node
    sources = {s.kernel.source for s in made_by(node, replace(EQUAL, arch=arch))}
    assert bool(FILES & sources) == (arch == "sm_90")


@pytest.mark.parametrize("k", [256, 4096, 14336, 28672, 53248])
@pytest.mark.parametrize("dtype", TYPES)
def test_any_length_has_room(dtype: str, k: int) -> None:
    w = Operand((8, k), dtype, 0.0, role="weight")
    for m in (17, 100):
        node = build("mul_mat", w, Operand((m, k), data=0.0)).node
        made = made_by(node, EQUAL)
        assert {s.kernel.source for s in made} == FILES
        assert all(s.shared <= EQUAL.shared_per_block for s in made)
        assert scratch_bytes(node, EQUAL) >= 2 * 64 * k * (1 if m == 17 else 2) // 2


def test_values_of_another_type_read_the_same_columns() -> None:
    made = made_by(heads(("q4_K", "q4_K", "q6_K"), 40, "f16", "norm", 512).node, EQUAL)
    names = [s.kernel.entry.split("<")[0] for s in made]
    assert names == ["integer_columns", *("mul_mat_integers", "sum_integers") * 2]


def test_quarters_of_tiles_are_shared_by_all_multiprocessors() -> None:
    for n, k, m, together in ((6144, 4096, 64, False), (28672, 4096, 64, False),
                              (4096, 14336, 512, True), (9000, 512, 257, False)):  # fmt: skip
        node = declared("mul_mat", weight(n, k, "q4_0"), Operand((m, k)))
        product = made_by(node, EQUAL)[1]
        name = "mul_mat_integers_together" if together else "mul_mat_integers"
        assert product.kernel.entry.split("<")[0] == name
        assert 0.7 * EQUAL.sm_count < product.grid[0] <= EQUAL.sm_count


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "m, k", [(17, 256), (33, 512), (64, 1280), (65, 2304), (129, 4096), (300, 4352), (40, 14336)]
)
def test_against_the_oracle(gpu: Any, dtype: str, m: int, k: int) -> None:
    for n in (60, 333):
        for op in OPS:
            built = build(op, *operands(op, Operand((m, k)), n, k, dtype, m), **params_of(op))
            assert nmse(run_on(gpu, built), built.expected) < built.tolerance, (op, n)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("n, k", [(301, 4096), (70, 14336), (129, 1280), (9000, 512)])
def test_a_column_has_the_same_bits_alone_and_beside_others(
    gpu: Any, dtype: str, op: str, n: int, k: int
) -> None:
    x = np.random.default_rng(1).standard_normal((MOST, k)).astype(np.float32)

    def result(m: int) -> np.ndarray:
        srcs = operands(op, Operand((m, k), "f32", x[:m]), n, k, dtype, m)
        return run_on(gpu, build(op, *srcs, oracle=False, **params_of(op)))

    whole = result(MOST)
    for m in COUNTS:
        assert result(m).tobytes() == whole[:m].tobytes(), m


@pytest.mark.gpu
@pytest.mark.parametrize("types", MIXED)
@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize("m, k", [(17, 512), (40, 4096), (130, 512)])
def test_heads(gpu: Any, types: tuple[str, str, str], mode: str, m: int, k: int) -> None:
    for state in ("f16", "f32"):
        built = heads(types, m, state, mode, k)
        assert nmse(run_on(gpu, built), built.expected) < built.tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("types", MIXED)
@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize("k", [512, 4096])
def test_queries_have_the_same_bits_alone_and_beside_others(
    gpu: Any, types: tuple[str, str, str], mode: str, k: int
) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((MOST, k)).astype(np.float32)
    pos = rng.integers(0, 4096, MOST).astype(np.int32)
    params = {**EPS, "n_dims": 64, "head_dim": 64, "mode": mode}

    def result(m: int) -> np.ndarray:
        weights = (weight(n, k, t) for n, t in zip((192, 64, 64), types, strict=True))
        states = (Operand((512, 64), "f32", role="state") for _ in range(2))
        where = Operand((m,), "i32", np.arange(m, dtype=np.int32))
        srcs = Operand((m, k), "f32", x[:m]), norm(k), *weights, Operand((m,), "i32", pos[:m])
        return run_on(gpu, build("norm_qkv_rope", *srcs, where, *states, **params))

    whole = result(MOST)
    for m in COUNTS:
        assert result(m).tobytes() == whole[:m].tobytes(), m


def large(x: np.ndarray, n: int, dtype: str) -> Built:
    """A product of a large shape, without what it should be; rows repeat in no order."""
    (m, k), t, rng = x.shape, dtype_by_name(dtype), np.random.default_rng(7)
    few = random_rows("w", (n, k), t)
    raw = few[rng.integers(len(few), size=n)].reshape(-1)
    g = Graph()
    node = g.op("mul_mat", g.weight("w", t, (n, k)), g.input("x", F32, (m, k)))
    feeds = {"w": raw, "x": np.ascontiguousarray(x).reshape(-1).view(np.uint8)}
    return Built(g, node, feeds, np.zeros((m, n)), feeds, 0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["q4_0", "q8_0", "q4_K", "q6_K"])
@pytest.mark.parametrize("n, k", fewer([TOGETHER], SHAPES_8B))
def test_large_shapes_have_the_same_bits(gpu: Any, dtype: str, n: int, k: int) -> None:
    x = np.random.default_rng(1).standard_normal((512, k)).astype(np.float32)
    whole = run_on(gpu, large(x, n, dtype))
    assert np.isfinite(whole).all()
    for m in fewer((65,), (1, 9, 17, 64, 65, 128)):
        found = run_on(gpu, large(x[-m:], n, dtype))
        assert found.tobytes() == whole[-m:].tobytes(), m
