"""Rows, copies, concat, repeat, reductions and top_k against values by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from harness import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from gguflow.engine.backends.numpy import evaluate
from gguflow.engine.graph import BF16, F16, F32, I32, DType, Graph, dtype_by_name


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_get_rows() -> None:
    table = [[1, 2], [3, 4], [5, 6]]
    got = reference("get_rows", table, ints(2, 0, 2, -1, 3))
    np.testing.assert_array_equal(got, [[5, 6], [1, 2], [5, 6], [0, 0], [0, 0]])


def test_set_rows() -> None:
    state = np.zeros((3, 2), np.float32)
    got = reference("set_rows", state, [[1, 2], [3, 4], [9, 9], [8, 8]], ints(2, 0, -1, 3))
    np.testing.assert_array_equal(got, [[3, 4], [0, 0], [1, 2]])


def cast(values: Any, dtype: DType) -> np.ndarray:
    g = Graph()
    x = np.float32(values)
    y = g.cpy(g.input("x", F32, x.shape), type=dtype.ggml_id)
    return evaluate(g, {"x": x}, [y])[y.name]


def test_cpy_rounds_to_nearest_even() -> None:
    u = 2.0**-11  # half a unit of f16's last place at one
    got = cast([1 + u, 1 + 3 * u, 65519, 65520, -1e9, 2**-25, 3 * 2**-25], F16)
    np.testing.assert_array_equal(got, [1, 1 + 4 * u, 65504, np.inf, -np.inf, 0, 2**-23])
    u = 2.0**-8
    got = cast([1 + u, 1 + 3 * u, 1 + u + 2**-20, -np.inf], BF16)
    np.testing.assert_array_equal(got, [1, 1 + 4 * u, 1 + 2 * u, -np.inf])


@pytest.mark.parametrize("t", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_cpy_quantizes_as_the_gguf_package_does(t: str) -> None:
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    kind = GGMLQuantizationType[t.upper()]
    expected = quants.dequantize(quants.quantize(x, kind), kind)
    np.testing.assert_array_equal(cast(x, dtype_by_name(t)), expected)


def test_cont_of_a_transpose() -> None:
    g = Graph()
    y = g.cont(g.transpose(g.input("x", I32, (2, 3))), name="y")
    got = evaluate(g, {"x": np.arange(6).reshape(2, 3)}, ["y"])["y"]
    assert y.is_contiguous and y.shape == (3, 2)
    np.testing.assert_array_equal(got, [[0, 3], [1, 4], [2, 5]])


def test_concat() -> None:
    a, b = [[1, 2], [3, 4]], [[5, 6], [7, 8]]
    np.testing.assert_array_equal(reference("concat", a, b, axis=-1), [[1, 2, 5, 6], [3, 4, 7, 8]])
    np.testing.assert_array_equal(reference("concat", a, b, axis=-2), [*a, *b])


def test_repeat() -> None:
    x = [[1, 2], [3, 4]]
    np.testing.assert_array_equal(reference("repeat", x, r0=2), [[1, 2, 1, 2], [3, 4, 3, 4]])
    np.testing.assert_array_equal(reference("repeat", x, r1=2), [[1, 2], [3, 4]] * 2)
    np.testing.assert_array_equal(reference("repeat", [1, 2], r2=3), [[[1, 2]]] * 3)


X = [[3, -1, 3], [2, 7, 2]]


@pytest.mark.parametrize(
    "op, inner, outer",
    [
        ("sum", [[5], [11]], [[5, 6, 5]]),
        ("mean", [[5 / 3], [11 / 3]], [[2.5, 3, 2.5]]),
        ("max", [[3], [7]], [[3, 7, 3]]),
        ("argmax", [[0], [1]], [[0, 1, 0]]),
    ],
)
def test_reduce(op: str, inner: list[list[float]], outer: list[list[float]]) -> None:
    for axis, expected in ((-1, inner), (-2, outer)):
        got = reference(op, X, axis=axis)
        assert got.dtype == (np.int32 if op == "argmax" else np.float32)
        np.testing.assert_allclose(got, expected, rtol=1e-7)


def test_argmax_takes_the_first_of_equals() -> None:
    got = reference("argmax", [[1, 3, 3], [-0.0, 0.0, -0.0], [-np.inf] * 3], axis=-1)
    np.testing.assert_array_equal(got, [[1], [0], [0]])


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    axis=st.integers(-4, -1),
    op=st.sampled_from(["sum", "mean", "max", "argmax"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_reduce_folds_each_line(shape: list[int], axis: int, op: str, seed: int) -> None:
    axis = max(axis, -len(shape))
    x = np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)
    got = reference(op, x, axis=axis)
    assert got.shape == tuple(1 if i == len(shape) + axis else n for i, n in enumerate(shape))
    fold = {
        "sum": sum,
        "mean": lambda line: sum(line) / len(line),
        "max": max,
        "argmax": lambda line: line.index(max(line)),
    }[op]
    for index in np.ndindex(*got.shape):
        line = [x[(*index[:axis], i, *index[len(shape) + axis + 1 :])] for i in range(shape[axis])]
        np.testing.assert_allclose(got[index], fold(line), rtol=1e-6)


def test_top_k() -> None:
    x = [[1, 5, 5, -2, 9], [0, -0.0, -np.inf, 0, 0]]
    got = reference("top_k", x, k=4)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, [[4, 1, 2, 0], [0, 1, 3, 4]])
