"""Experts on the GPU: a row's bits do not depend on what is computed beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import build_case, run_on

from gguflow.engine.graph import Case, Operand, op_spec

pytestmark = pytest.mark.gpu


def operands(op: str, dtype: str, rows: slice, n: int, k: int, bias: bool) -> Case:
    """Some rows of a batch of 40 tokens with four of ten experts each."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((40, 4, k)).astype(np.float32)
    ids = np.array([rng.permutation(10)[:4] for _ in range(40)])
    ids[3, 1] = ids[20, 0] = -1
    shares = rng.uniform(0.1, 1, (40, 4)).astype(np.float32)
    weights = [Operand((10, n, k), dtype, role="weight") for _ in range(1 + (op[-3:] == "glu"))]
    biases: list[Operand | None] = [Operand((10, n), role="weight") if bias else None]
    token = x[rows, 0] if op == "mul_mat_id_glu" else x[rows]
    srcs: list[Operand | None] = [*weights, Operand(token.shape, "f32", token)]
    srcs.append(Operand(ids[rows].shape, "i32", ids[rows]))
    if op == "mul_mat_id_sum":
        srcs += [Operand(shares[rows].shape, "f32", shares[rows]), *biases]
    elif bias:
        srcs += biases * len(weights)
    return Case(tuple(srcs), {"act": "swiglu"} if op == "mul_mat_id_glu" else {})


def result(gpu: Any, op: str, case: Case) -> np.ndarray:
    return run_on(gpu, build_case(op_spec(op), case, np.random.default_rng(1)))


@pytest.mark.parametrize("dtype", ["q4_0", "q8_0", "q4_K", "q6_K", "mxfp4", "f16", "bf16"])
@pytest.mark.parametrize("op", ["mul_mat_id", "mul_mat_id_glu", "mul_mat_id_sum"])
@pytest.mark.parametrize("bias", [False, True])
def test_rows_have_the_same_bits_beside_any_others(gpu: Any, op: str, dtype: str,
                                                   bias: bool) -> None:  # fmt: skip
    k = 2048 if dtype == "q6_K" else 512
    of = lambda begin, end: result(gpu, op, operands(op, dtype, slice(begin, end), 130, k, bias))  # noqa: E731
    few = of(0, 12)  # 48 pairs
    for begin, end in ((0, 1), (3, 5), (11, 12)):
        assert of(begin, end).tobytes() == few[begin:end].tobytes()
    many = of(0, 40)  # 160 pairs
    for begin, end in ((0, 20), (15, 40)):
        assert of(begin, end).tobytes() == many[begin:end].tobytes()
