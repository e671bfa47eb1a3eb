"""mul_mat_one.cu: one column of quantized weights, with the bits that it has among up to 16
(mul_mat_few.cu). Of 16-bit weights: test_equal_floats.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import nmse, run_on
from kernel_list import EQUAL
from test_mul_mat_columns import EPS, build, declared, heads, made_by, weight
from test_mul_mat_few import TYPES, norm

from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import Operand
from gguflow.kernels.cuda.launch import scratch_bytes, supports

COUNTS = (1, 2, 3, 8, 9)  # of columns beside which those of 16 are compared
MIXED = [("q4_0",) * 3, ("q8_0",) * 3, ("q4_K",) * 3, ("q4_K", "q4_K", "q6_K")]
OPS = ("mul_mat", "mul_mat_add", "norm_mul_mat", "mul_mat_swiglu", "norm_mul_mat_swiglu")


@pytest.fixture(scope="module")
def gpu(gpu: Any) -> Any:
    """The backend on which one column has these bits."""
    return find_backend("cuda", {"equal_bits": True})


def sources(node: Any, device: Any = EQUAL) -> set[str]:
    return {s.kernel.source for s in made_by(node, device)}


def operands(op: str, x: Operand, n: int, k: int, dtype: str, m: int) -> tuple[Operand, ...]:
    """Of which those of one op are the same for every m."""
    ws = [weight(n, k, dtype) for _ in range(2 if op.endswith("swiglu") else 1)]
    r = np.random.default_rng(5).standard_normal((16, n)).astype(np.float32)
    beside = [Operand((m, n), "f32", r[:m])] if op == "mul_mat_add" else []
    return (x, norm(k), *ws) if op.startswith("norm_") else (*ws, x, *beside)


@pytest.mark.slow  # test_compile.py has some of every kind
@pytest.mark.parametrize("dtype", TYPES)
def test_compiles(nvrtc: Any, dtype: str) -> None:
    kernels = {
        s.kernel
        for op in ("mul_mat", "mul_mat_swiglu")
        for s in made_by(
            build(op, *operands(op, Operand((1, 2048)), 8, 2048, dtype, 1)).node, EQUAL
        )
    }
    kernels |= {s.kernel for s in made_by(heads((dtype,) * 3, 1, "f16", "norm", 2048).node, EQUAL)}
    assert {k.source for k in kernels} == {"mul_mat_one.cu"}
    assert len(kernels) == 3
    entries = sorted(k.entry for k in kernels)
    assert len(nvrtc.compile_source("mul_mat_one.cu", entries, "sm_90").names) == 3


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", ["q4_0", "f16"])
def test_where_several_columns_have_the_same_bits(arch: str, dtype: str) -> None:
    node = build("mul_mat", weight(8, 512, dtype), Operand((1, 512))).node
    (launch,) = made_by(node, replace(EQUAL, arch=arch))
    own = "mul_mat_one_float.cu" if dtype == "f16" else "mul_mat_one.cu"
    assert launch.kernel.source == ("mul_mat_vec.cu" if arch == "sm_80" else own)


@pytest.mark.parametrize("dtype", [*TYPES, "f16", "bf16"])
def test_only_where_it_is_asked_for(dtype: str) -> None:
    k, own = 4096, "mul_mat_one.cu" if dtype in TYPES else "mul_mat_one_float.cu"
    nodes = [heads((dtype,) * 3, 1, "f16", "norm", k, declared)]
    for op in OPS:
        params = EPS if op.startswith("norm_") else {}
        nodes.append(declared(op, *operands(op, Operand((1, k)), 64, k, dtype, 1), **params))
    for node in nodes:
        faster = replace(EQUAL, equal_bits=False)
        assert supports(node) and supports(node, equal_bits=True)
        assert sources(node, faster) == {"mul_mat_vec.cu"}
        assert scratch_bytes(node, faster) == (
            2 * node.nbytes if node.op == "mul_mat_swiglu" else 0
        )
        assert sources(node) == {own}


def test_a_fused_op_that_only_these_kernels_take() -> None:
    k = 40_960  # of which mul_mat_vec.cu has no room for a column
    x, w = Operand((1, k), data=0.0), Operand((8, k), "f16", 0.0, role="weight")
    node = build("norm_mul_mat", x, norm(k), w, **EPS).node
    assert not supports(node) and supports(node, equal_bits=True)
    assert sources(node) == {"mul_mat_one_float.cu"}


@pytest.mark.parametrize("k", [256, 2048, 4096, 14336, 28672, 53248])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_long_column_has_room(dtype: str, k: int) -> None:
    w = Operand((8, k), dtype, 0.0, role="weight")
    assert sources(build("mul_mat", w, Operand((1, k))).node) <= {
        "mul_mat_one.cu", "mul_mat_few.cu", "columns_int8.cu"
    }  # fmt: skip


def test_values_of_another_16_bit_type_are_by_themselves() -> None:
    made = made_by(heads(("f16", "f16", "bf16"), 1, "f16", "norm").node, EQUAL)
    assert [s.kernel.source for s in made] == ["mul_mat_one_float.cu"] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("k", [256, 512, 1280, 2304, 4096, 8960, 14336])
def test_against_the_oracle(gpu: Any, dtype: str, k: int) -> None:
    for n in (60, 333):
        for op in OPS:
            built = build(op, *operands(op, Operand((1, k)), n, k, dtype, 1),
                          **(EPS if op.startswith("norm_") else {}))  # fmt: skip
            assert nmse(run_on(gpu, built), built.expected) < built.tolerance, (op, n)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("n, k", [(301, 4096), (70, 14336), (129, 1280), (20_000, 512)])
def test_a_column_has_the_same_bits_alone_and_beside_others(
    gpu: Any, dtype: str, op: str, n: int, k: int
) -> None:
    x = np.random.default_rng(1).standard_normal((16, k)).astype(np.float32)

    def result(m: int) -> np.ndarray:
        srcs = operands(op, Operand((m, k), "f32", x[:m]), n, k, dtype, m)
        params = EPS if op.startswith("norm_") else {}
        return run_on(gpu, build(op, *srcs, oracle=False, **params))

    whole = result(16)
    for m in COUNTS:
        assert result(m).tobytes() == whole[:m].tobytes(), m


@pytest.mark.gpu
@pytest.mark.parametrize("types", MIXED)
@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize("k", [512, 4096])
def test_heads(gpu: Any, types: tuple[str, str, str], mode: str, k: int) -> None:
    for state in ("f16", "f32"):
        built = heads(types, 1, state, mode, k)
        assert nmse(run_on(gpu, built), built.expected) < built.tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("types", MIXED)
@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize("k", [512, 4096])
def test_queries_have_the_same_bits_alone_and_beside_others(
    gpu: Any, types: tuple[str, str, str], mode: str, k: int
) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((16, k)).astype(np.float32)
    pos = rng.integers(0, 4096, 16).astype(np.int32)
    params = {**EPS, "n_dims": 64, "head_dim": 64, "mode": mode}

    def result(m: int) -> np.ndarray:
        weights = (weight(n, k, t) for n, t in zip((192, 64, 64), types, strict=True))
        states = (Operand((256, 64), "f32", role="state") for _ in range(2))
        where = Operand((m,), "i32", np.arange(m, dtype=np.int32))
        srcs = Operand((m, k), "f32", x[:m]), norm(k), *weights, Operand((m,), "i32", pos[:m])
        return run_on(gpu, build("norm_qkv_rope", *srcs, where, *states, **params))

    whole = result(16)
    for m in COUNTS:
        assert result(m).tobytes() == whole[:m].tobytes(), m
