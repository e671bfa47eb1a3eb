"""mul_mat and its fusions against products by hand and the gguf package's own dequantizers."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from harness import reference

from gguflow.engine.backends.numpy import evaluate
from gguflow.engine.graph import F32, I32, Graph, dtype_by_name

W = [[1, 2], [3, 4], [5, 6]]
X = [[1, 1], [2, -1]]


def test_rows_of_the_weight_are_the_outputs() -> None:
    np.testing.assert_array_equal(reference("mul_mat", W, X), [[3, 7, 11], [0, 2, 4]])


def test_batches_of_x_share_the_weights_in_runs() -> None:
    w = np.float32([[[10]], [[20]]])
    got = reference("mul_mat", w, np.ones((4, 1, 1), np.float32))
    np.testing.assert_array_equal(got.reshape(-1), [10, 10, 20, 20])
    w = np.arange(6, dtype=np.float32).reshape(2, 3, 1, 1)
    got = reference("mul_mat", w, np.ones((4, 3, 1, 1), np.float32))
    np.testing.assert_array_equal(got.reshape(4, 3), [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]])


def test_fewer_dimensions_on_either_side() -> None:
    x = np.ones((2, 3, 1, 2), np.float32)
    assert reference("mul_mat", W, x).shape == (2, 3, 1, 3)
    np.testing.assert_array_equal(reference("mul_mat", [[W]], X), [[3, 7, 11], [0, 2, 4]])


def test_fused_with_what_follows() -> None:
    got = reference("mul_mat_add", W, X, [100, 200, 300])
    np.testing.assert_array_equal(got, [[103, 207, 311], [100, 202, 304]])
    got = reference("mul_mat_add", W, X, [[1, 1, 1], [2, 2, 2]])
    np.testing.assert_array_equal(got, [[4, 8, 12], [2, 4, 6]])
    other = [[1], [0], [-1]], [[10], [20]]
    got = reference("mul_mat_two_add", W, X, *other, [[1, 1, 1], [2, 2, 2]], None, [100, 200, 300])
    np.testing.assert_array_equal(got, [[114, 208, 302], [122, 204, 286]])
    # gate 1 and -2, up 2 and 3: silu(1) * 2 and silu(-2) * 3.
    got = reference("mul_mat_swiglu", [[1, 0], [0, 1]], [[2, 0], [0, -1.5]], [[1, -2]])
    np.testing.assert_allclose(got, [[2 * 0.7310585786, -3 * 0.2384058440]], rtol=1e-6)


@pytest.mark.parametrize("t", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_quantized_weights_mean_what_the_gguf_package_says(t: str) -> None:
    rng = np.random.default_rng(0)
    kind = GGMLQuantizationType[t.upper()]
    raw = quants.quantize(rng.standard_normal((5, 96)).astype(np.float32), kind)
    w = quants.dequantize(raw, kind)
    x = rng.standard_normal((3, 96)).astype(np.float32)

    g = Graph()
    weight = g.weight("w", dtype_by_name(t), (5, 96))
    g.output(g.mul_mat(weight, g.input("x", F32, (3, 96)), name="y"))
    g.output(g.get_rows(weight, g.input("ids", I32, (2,)), name="rows"))
    got = evaluate(g, {"w": raw, "x": x, "ids": np.array([4, 1])})
    np.testing.assert_allclose(got["y"], x @ w.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(got["rows"], w[[4, 1]])
