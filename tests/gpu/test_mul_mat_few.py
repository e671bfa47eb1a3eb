"""mul_mat_few.cu: quantized weights times 2 to 16 columns, in one order of sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import nmse, run_on
from test_mul_mat_columns import EPS, build, heads, made_by, weight

from gguflow.engine.graph import Operand
from gguflow.kernels.cuda.launch import DeviceInfo

TYPES = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K"]
COUNTS = (2, 3, 4, 5, 8, 9)  # of columns beside which those of 16 are compared
SOME = ["q4_0", "q5_1", "q8_0", "q2_K", "q4_K", "q6_K"]


def norm(k: int) -> Operand:
    return Operand((k,), data=lambda rng, s: rng.uniform(0.5, 1.5, s), role="weight")


@pytest.mark.slow  # test_compile.py has some of every kind
@pytest.mark.parametrize("dtype", TYPES)
def test_compiles(nvrtc: Any, dtype: str) -> None:
    kernels = {
        s.kernel
        for m, k in ((2, 512), (8, 4096), (16, 4096), (3, 16384))
        for s in made_by(build("mul_mat", weight(8, k, dtype), Operand((m, k))).node)
    }
    assert {k.source for k in kernels} == {"columns_int8.cu", "mul_mat_few.cu"}
    for kernel in kernels:
        (name,) = nvrtc.compile_source(kernel.source, [kernel.entry], "sm_90", kernel.options).names
        assert name.startswith("_Z")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_where_bulk_copies_are(arch: str) -> None:
    node = build("mul_mat", weight(8, 512, "q4_0"), Operand((3, 512))).node
    sources = {s.kernel.source for s in made_by(node, DeviceInfo(arch))}
    assert ("mul_mat_few.cu" in sources) == (arch != "sm_80")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "m, k", [(2, 512), (4, 4096), (7, 1280), (16, 2048), (13, 4352), (3, 14336)]
)
def test_against_the_oracle(gpu: Any, dtype: str, m: int, k: int) -> None:
    n = 333
    w, x = weight(n, k, dtype), Operand((m, k))
    for op, srcs, params in (
        ("mul_mat", (w, x), {}),
        ("mul_mat_add", (w, x, Operand((m, n))), {}),
        ("mul_mat_add", (w, x, Operand((n,))), {}),
        ("mul_mat_swiglu", (w, weight(n, k, dtype), x), {}),
        ("norm_mul_mat", (x, norm(k), w), EPS),
        ("norm_mul_mat_swiglu", (x, norm(k), w, weight(n, k, dtype)), EPS),
    ):
        built = build(op, *srcs, **params)
        assert {s.kernel.source for s in made_by(built.node)} <= {
            "columns_int8.cu", "mul_mat_few.cu"
        }  # fmt: skip
        assert nmse(run_on(gpu, built), built.expected) < built.tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["q4_0", "q8_0", "q6_K"])
@pytest.mark.parametrize("m, k", [(2, 8192), (3, 14336), (16, 14336), (5, 33024)])
def test_long_rows(gpu: Any, dtype: str, m: int, k: int) -> None:
    built = build("mul_mat_add", weight(2500, k, dtype), Operand((m, k)), Operand((m, 2500)))
    assert nmse(run_on(gpu, built), built.expected) < built.tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", SOME)
@pytest.mark.parametrize("op", ["mul_mat", "norm_mul_mat_swiglu"])
@pytest.mark.parametrize("n, k", [(300, 4096), (70, 14336), (40_000, 512)])
def test_a_column_has_the_same_bits_beside_any_others(
    gpu: Any, dtype: str, op: str, n: int, k: int
) -> None:
    x = np.random.default_rng(1).standard_normal((16, k)).astype(np.float32)
    fused = op.startswith("norm_")
    ws = [weight(n, k, dtype) for _ in range(2 if fused else 1)]

    def result(m: int) -> np.ndarray:
        columns = Operand((m, k), "f32", x[:m])
        srcs = (columns, norm(k), *ws) if fused else (*ws, columns)
        return run_on(gpu, build(op, *srcs, oracle=False, **(EPS if fused else {})))

    whole = result(16)
    for m in COUNTS:
        assert result(m).tobytes() == whole[:m].tobytes(), m


@pytest.mark.gpu
@pytest.mark.parametrize("types", [("q4_0",) * 3, ("q4_K", "q4_K", "q6_K")])
@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize("m, k", [(2, 512), (3, 4096), (8, 512), (13, 512)])
def test_heads(gpu: Any, types: tuple[str, str, str], mode: str, m: int, k: int) -> None:
    for state in ("f16", "f32"):
        built = heads(types, m, state, mode, k)
        assert nmse(run_on(gpu, built), built.expected) < built.tolerance
