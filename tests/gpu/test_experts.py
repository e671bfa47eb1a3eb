"""Experts on the GPU: a row's bits do not depend on what is computed beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import Built, build_case, nmse, read, run_on
from sizes import fewer

from gguflow.engine.compile.row_padding import padded_strides
from gguflow.engine.graph import Case, Operand, Role, Tensor, op_spec
from gguflow.engine.ops._common import block_of

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
    built = build_case(op_spec(op), case, np.random.default_rng(1), oracle=False)
    return run_on(gpu, built)


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


class Padded:
    """Memory as models have it on a GPU: rows of weights begin at multiples of 16 bytes."""

    def __init__(self, gpu: Any, built: Built) -> None:
        self.buffers = {}
        for name, leaf in built.graph.leaves.items():
            if leaf.role is Role.WEIGHT:
                leaf.strides = padded_strides(leaf.dtype, leaf.shape, 16)
                self.buffers[leaf] = gpu.load_weight(leaf, built.feeds[name], False)
            else:
                self.buffers[leaf] = gpu.alloc(leaf.nbytes)
                self.buffers[leaf].write(0, built.feeds[name])
        self.buffers[built.node] = gpu.alloc(built.node.nbytes)
        self.buffers[built.node].write(0, np.full(built.node.nbytes, 255, np.uint8))

    def locate(self, owner: Tensor) -> tuple[Any, int]:
        return self.buffers[owner], 0

    def is_packed(self, owner: Tensor) -> bool:
        return False


def skewed(rng: np.random.Generator, e: int, m: int, u: int) -> np.ndarray:
    """Experts of m rows, the first with many and the last with none; a few unknown."""
    weights = 1 / (1 + np.arange(e)) ** 1.5
    weights[-1] = 0
    p = weights / weights.sum()
    ids = np.array([rng.choice(e, u, replace=False, p=p) for _ in range(m)])
    ids[rng.random((m, u)) < 0.02] = e
    return ids


TYPES = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K",
             "iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "iq2_xs", "iq1_s", "f16", "bf16"]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", ["mul_mat_id", "mul_mat_id_glu", "mul_mat_id_sum"])
@pytest.mark.parametrize(
    "e, m, u, n, k, act, bias",
    [
        (9, 300, 4, 200, 576, "swiglu", False),  # tiles of all widths, the last chunk a part
        (5, 30, 3, 67, 2880, "swiglu_clamped", True),
        (40, 512, 2, 130, 256, "swiglu_clamped", True),
        (9, 1, 4, 515, 2880, "swiglu_clamped", True),
        (6, 5, 4, 130, 832, "swiglu", False),
    ],
)
def test_padded_rows(gpu: Any, op: str, dtype: str, e: int, m: int, u: int, n: int, k: int,
                     act: str, bias: bool) -> None:  # fmt: skip
    rng = np.random.default_rng(k + n)
    n = fewer(min(n, 200), n)
    k = -(-k // block_of(dtype)) * block_of(dtype)
    glu = op == "mul_mat_id_glu"
    scaled = lambda g, s: g.standard_normal(s) / np.sqrt(s[-1])  # noqa: E731
    srcs: list[Operand | None] = [
        Operand((e, n, k), dtype, scaled, role="weight") for _ in range(1 + glu)
    ]
    srcs.append(Operand((m, k) if glu else (m, u, k)))
    srcs.append(Operand((m, u), "i32", skewed(rng, e, m, u)))
    biases = [Operand((e, n), role="weight") if bias else None] * (1 + glu)
    if op == "mul_mat_id_sum":
        srcs += [Operand((m, u), data=lambda g, s: g.uniform(0.1, 1, s)), *biases, Operand((m, n))]
    elif bias:
        srcs += biases
    built = build_case(op_spec(op), Case(tuple(srcs), {"act": act} if glu else {}), rng)
    memory = Padded(gpu, built)
    gpu.lower([built.node], memory).run()
    node = built.node
    found = read(node, {node: memory.buffers[node].read(0, node.nbytes)})
    assert nmse(found, built.expected) <= built.tolerance
