"""mul_mat_columns.cu: products of a few to many columns by the warpgroups of Hopper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import build_case, nmse, run_on
from kernel_list import launches_of

from gguflow.engine.graph import Case, Operand, op_spec
from gguflow.kernels.cuda.launch import DeviceInfo, Launch
from gguflow.kernels.cuda.launch import Operand as DeviceOperand
from gguflow.kernels.cuda.mul_mat_columns import applies, tile_for

TYPES = ["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K",
         "q6_K"]  # fmt: skip
MANY = [2, 8, 9, 16, 17, 33, 64, 65, 128, 200]


def build(op: str, *srcs: Operand) -> Any:
    return build_case(op_spec(op), Case(srcs), np.random.default_rng(0))


def weight(n: int, k: int, dtype: str) -> Operand:
    scaled = lambda rng, s: rng.standard_normal(s) / np.sqrt(k)  # noqa: E731
    return Operand((n, k), dtype, scaled, role="weight")


def made_by(node: Any) -> list[Launch]:
    return [s for s in launches_of(node) if isinstance(s, Launch)]


@pytest.mark.parametrize("dtype", TYPES)
def test_compiles(nvrtc: Any, dtype: str) -> None:
    several = (8, 32, 128) if dtype in ("f16", "q4_0") else (16,)
    kernels = {
        s.kernel
        for m in several
        for s in made_by(build("mul_mat", weight(8, 512, dtype), Operand((m, 512))).node)
    }
    assert {k.source for k in kernels} == {"mul_mat_columns.cu"}
    for kernel in kernels:
        (name,) = nvrtc.compile_source(kernel.source, [kernel.entry], "sm_90", kernel.options).names
        assert name.startswith("_Z")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_only_where_the_instructions_are(arch: str) -> None:
    node = build("mul_mat", weight(8, 512, "q4_0"), Operand((16, 512))).node
    srcs = tuple(DeviceOperand.of(s, 0) for s in node.srcs)
    assert applies(node, srcs, DeviceInfo(arch)) == (arch == "sm_90")


@pytest.mark.parametrize("n, k", [(4096, 4096), (1024, 4096), (4096, 14336), (70, 512)])
def test_parts_of_k_do_not_depend_on_the_columns(n: int, k: int) -> None:
    def parts(m: int) -> int:
        rng = np.random.default_rng(0)
        zero = Case((Operand((n, k), "f16", 0.0, role="weight"), Operand((m, k), data=0.0)))
        return made_by(build_case(op_spec("mul_mat"), zero, rng).node)[1].grid[1]

    assert len({parts(m) for m in (5, 40, 100)}) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("m", MANY)
def test_columns(gpu: Any, dtype: str, m: int) -> None:
    n, k = 333, 1280
    w, x = weight(n, k, dtype), Operand((m, k))
    for op, srcs in (
        ("mul_mat", (w, x)),
        ("mul_mat_add", (w, x, Operand((m, n)))),
        ("mul_mat_add", (w, x, Operand((n,)))),
        ("mul_mat_swiglu", (w, weight(n, k, dtype), x)),
    ):
        built = build(op, *srcs)
        assert nmse(run_on(gpu, built), built.expected) < 5e-5


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "q4_0", "q6_K"])
@pytest.mark.parametrize("op", ["mul_mat", "mul_mat_swiglu"])
@pytest.mark.parametrize("n", [300, 40_000])
def test_a_column_does_not_depend_on_how_many_there_are(
    gpu: Any, dtype: str, op: str, n: int
) -> None:
    x = np.random.default_rng(1).standard_normal((128, 512)).astype(np.float32)
    ws = [weight(n, 512, dtype) for _ in range(2 if op == "mul_mat_swiglu" else 1)]
    found = {m: run_on(gpu, build(op, *ws, Operand((m, 512), "f32", x[:m]))) for m in (5, 20, 128)}
    assert [tile_for(m).columns for m in found] == [8, 32, 128]
    for m in (5, 20):
        assert found[m].tobytes() == found[128][:m].tobytes()
