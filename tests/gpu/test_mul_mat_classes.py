"""Products of both classes of rows (docs/equal-bits.md) with quantized weights: those of prompts by
mul_mat_columns.cu and mul_mat_tiles.cu, with the same bits at any number of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import Built, build_case, nmse, run_on
from kernel_list import EQUAL
from sizes import fewer
from test_mul_mat_columns import EPS, declared, heads, made_by, weight
from test_mul_mat_columns import build as build_op
from test_mul_mat_few import TYPES, norm
from test_mul_mat_integers import (
    FILES,
    MOST,
    SHAPES_8B,
    large,
    operands,
    params_of,
)
from test_mul_mat_one import MIXED, OPS

from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import Operand, op_spec
from gguflow.kernels.cuda.launch import scratch_bytes, supports

CHUNKS = {"columns_round.cu", "mul_mat_columns.cu", "mul_mat_tiles.cu"}
COUNTS = fewer((1, 8, 17, 65, 200), (1, 2, 8, 9, 16, 17, 33, 64, 65, 128, 129, 200, 256))  # of 257


@pytest.fixture(scope="module")
def gpu(gpu: Any) -> Any:
    """The backend that knows classes."""
    return find_backend("cuda", {"equal_bits": True})


def build(op: str, *srcs: Operand | None, n_single: int | None = 0, **params: Any) -> Built:
    """Of rows of which so many first ones are single."""
    built = build_op(op, *srcs, **params)
    built.node.n_single = n_single
    return built


def product(op: str, m: int, n: int, k: int, dtype: str, n_single: int | None = 0) -> Built:
    srcs = operands(op, Operand((m, k)), n, k, dtype, m)
    return build(op, *srcs, n_single=n_single, **params_of(op))


def sources(built: Built, **device: Any) -> list[str]:
    return [s.kernel.source for s in made_by(built.node, replace(EQUAL, **device))]


@pytest.mark.slow  # test_compile.py has some of every kind
@pytest.mark.parametrize("dtype", TYPES)
def test_compiles(nvrtc: Any, dtype: str) -> None:
    found = [product(op, 300, 8, 512, dtype) for op in ("mul_mat", "mul_mat_swiglu")]
    nodes = [b.node for b in found]
    nodes.append(heads((dtype,) * 3, 300, "f16", "norm").node)
    nodes[-1].n_single = 0
    kernels = {s.kernel for node in nodes for s in made_by(node, EQUAL)}
    tiles = sorted(k.entry for k in kernels if k.source == "mul_mat_tiles.cu")
    assert len(tiles) == 3
    (options,) = {k.options for k in kernels if k.source == "mul_mat_tiles.cu"}
    assert len(nvrtc.compile_source("mul_mat_tiles.cu", tiles, "sm_90", options).names) == 3


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", OPS)
def test_rows_of_prompts_have_kernels_of_their_own(op: str, dtype: str) -> None:
    for m in (1, 2, 16, 17, 128, 129, 512):
        x = Operand((m, 4096))
        built = build(op, *operands(op, x, 8, 4096, dtype, m), oracle=False, **params_of(op))
        assert supports(built.node, equal_bits=True)
        assert set(sources(built)) <= CHUNKS and not set(sources(built)) & FILES


def test_rows_of_both_classes_are_multiplied_apart() -> None:
    for op in OPS:
        built = product(op, 40, 8, 512, "q4_0", 20)
        one, other = (sources(product(op, 20, 8, 512, "q4_0", n)) for n in (None, 0))
        assert one[0] == "columns_integers.cu" and other[0] == "columns_round.cu"
        assert sources(built) == [*one, *other]
        # What the columns become is not there for the next op, for the others' lie over it.
        assert all(s.leaves is None for s in made_by(built.node, EQUAL))


def test_of_16_bit_weights_all_rows_are_one_product() -> None:
    for k in (480, 512):
        built = product("mul_mat", 40, 64, k, "f16", 20)
        assert sources(built) == sources(product("mul_mat", 40, 64, k, "f16", None))


def test_without_equal_bits_classes_do_not_count() -> None:
    for m in (1, 8, 40):
        found = product("mul_mat", m, 64, 512, "q4_0", m // 2)
        other = product("mul_mat", m, 64, 512, "q4_0", None)
        assert sources(found, equal_bits=False) == sources(other, equal_bits=False)


@pytest.mark.parametrize("op", OPS)
def test_where_many_are_to_be_fast_there_is_one_class(op: str) -> None:
    for m in (1, 8, 40, 200):
        chunks = sources(product(op, m, 8, 512, "q4_0", 0))
        for n_single in (None, 0, m // 2, m):
            assert sources(product(op, m, 8, 512, "q4_0", n_single), one_class=True) == chunks
        floats = product(op, m, 8, 512, "f16", m)
        assert sources(floats, one_class=True) == sources(floats)


@pytest.mark.parametrize("k", [256, 4096, 14336, 28672, 53248])
@pytest.mark.parametrize("dtype", TYPES)
def test_any_length_has_room(dtype: str, k: int) -> None:
    w = Operand((8, k), dtype, 0.0, role="weight")
    for m in (1, 100, 300):
        node = declared("mul_mat", w, Operand((m, k)))
        node.n_single = 0
        made = made_by(node, EQUAL)
        assert {s.kernel.source for s in made} <= CHUNKS
        assert all(s.shared <= EQUAL.shared_per_block for s in made)
        assert scratch_bytes(node, EQUAL) >= 2 * m * k


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("m, k", [(1, 256), (5, 1280), (40, 14336), (129, 2304), (300, 4352)])
def test_against_the_oracle(gpu: Any, dtype: str, m: int, k: int) -> None:
    for n in (60, 333):
        for op in OPS:
            for n_single in (0, m // 3):
                built = product(op, m, n, k, dtype, n_single)
                most = built.tolerance if n_single else 5e-5
                assert nmse(run_on(gpu, built), built.expected) < most, (op, n, n_single)


def held(result: Callable[[int, int, int], np.ndarray]) -> None:
    """result: of rows from, to, of which so many first ones are single. Rows of either class have
    the bits that they have beside others."""
    chunk, single = result(0, MOST, 0), result(0, MOST, MOST)
    assert chunk.tobytes() != single.tobytes()
    for m in COUNTS:
        assert result(0, m, 0).tobytes() == chunk[:m].tobytes(), m
        assert result(MOST - m, MOST, 0).tobytes() == chunk[-m:].tobytes(), m
    for begin, end, n in ((0, 2, 1), (0, 40, 3), (9, 60, 20), (0, MOST, 64), (3, 150, 17)):
        both = result(begin, end, n)
        assert both[:n].tobytes() == single[begin : begin + n].tobytes(), (begin, end, n)
        assert both[n:].tobytes() == chunk[begin + n : end].tobytes(), (begin, end, n)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("n, k", [(301, 4096), (70, 14336), (129, 1280), (9000, 512)])
def test_rows_of_either_class_have_the_same_bits_beside_others(
    gpu: Any, dtype: str, op: str, n: int, k: int
) -> None:
    x = np.random.default_rng(1).standard_normal((MOST, k)).astype(np.float32)
    r = np.random.default_rng(5).standard_normal((MOST, n)).astype(np.float32)

    def result(begin: int, end: int, n_single: int) -> np.ndarray:
        m = end - begin
        srcs = list(operands(op, Operand((m, k), "f32", x[begin:end]), n, k, dtype, m))
        if op == "mul_mat_add":
            srcs[2] = Operand((m, n), "f32", r[begin:end])
        built = build(op, *srcs, oracle=False, n_single=n_single, **params_of(op))
        return run_on(gpu, built)

    held(result)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", fewer(["q4_K"], TYPES))
@pytest.mark.parametrize("op", OPS)
def test_rows_of_one_class_have_the_same_bits(gpu: Any, dtype: str, op: str) -> None:
    """A prompt's, whichever they are."""
    many, n, k = find_backend("cuda", {"equal_bits": "many"}), 301, 4096
    x = np.random.default_rng(1).standard_normal((MOST, k)).astype(np.float32)

    def result(device: Any, m: int, n_single: int) -> np.ndarray:
        srcs = operands(op, Operand((m, k), "f32", x[:m]), n, k, dtype, m)
        built = build(op, *srcs, oracle=False, n_single=n_single, **params_of(op))
        return run_on(device, built)

    wanted = result(gpu, MOST, 0)
    for m in COUNTS:
        for n_single in (0, m // 2, m):
            assert result(many, m, n_single).tobytes() == wanted[:m].tobytes(), (m, n_single)


@pytest.mark.gpu
@pytest.mark.parametrize("types", MIXED)
@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize("k", [512, 4096])
def test_queries_of_either_class_have_the_same_bits_beside_others(
    gpu: Any, types: tuple[str, str, str], mode: str, k: int
) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((MOST, k)).astype(np.float32)
    pos = rng.integers(0, 4096, MOST).astype(np.int32)
    params = {**EPS, "n_dims": 64, "head_dim": 64, "mode": mode}

    def result(begin: int, end: int, n_single: int) -> np.ndarray:
        weights = (weight(n, k, t) for n, t in zip((192, 64, 64), types, strict=True))
        states = (Operand((512, 64), "f32", role="state") for _ in range(2))
        where = Operand((end - begin,), "i32", np.arange(begin, end, dtype=np.int32))
        srcs = Operand((end - begin, k), "f32", x[begin:end]), norm(k), *weights
        at = Operand((end - begin,), "i32", pos[begin:end])
        return run_on(gpu, build("norm_qkv_rope", *srcs, at, where, *states, n_single=n_single,
                                 **params))  # fmt: skip

    held(result)


@pytest.mark.gpu
def test_heads_of_both_classes(gpu: Any) -> None:
    """Keys and values too, with biases, norms of heads and parts that pass through."""
    for case in op_spec("norm_qkv_rope").cases():
        built = build_case(op_spec("norm_qkv_rope"), case, np.random.default_rng(0))
        if built.node.shape[0] > 1:
            built.node.n_single = built.node.shape[0] // 2
            assert nmse(run_on(gpu, built), built.expected) < built.tolerance, case.note


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["q4_0", "q8_0", "q4_K", "q6_K"])
@pytest.mark.parametrize("n, k", fewer([(28672, 1024)], SHAPES_8B))
def test_large_shapes_have_the_same_bits(gpu: Any, dtype: str, n: int, k: int) -> None:
    x = np.random.default_rng(1).standard_normal((fewer(250, 1000), k)).astype(np.float32)

    def result(x: np.ndarray) -> np.ndarray:
        built = large(x, n, dtype)
        built.node.n_single = 0
        return run_on(gpu, built)

    whole = result(x)
    assert np.isfinite(whole).all()
    for m in fewer((16,), (1, 16, 17, 100, 256, 300, 512)):
        assert result(x[-m:]).tobytes() == whole[-m:].tobytes(), m
