"""The ops over active neurons against values worked out by hand."""

from __future__ import annotations

import numpy as np
from harness import reference

from gguflow.engine.graph import LEAST_POSITIVE, Graph, dtype_by_name, least_above

NAN, INF = np.nan, np.inf
W = [[1, 0], [0, 1], [1, 1], [2, -1]]  # four neurons
X = [[3, 5], [-1, 2]]


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_rows_of_active_neurons_only() -> None:
    idx = [[0, -1, 0.5, -0.1], [-1, -1, -1, 1]]
    got = reference("mul_mat_sparse", W, X, idx)
    np.testing.assert_array_equal(got, [[3, 0, 8, 0], [0, 0, 0, -4]])


def test_skipped_is_what_lies_below_the_threshold_and_nothing_else() -> None:
    got = reference("mul_mat_sparse", W, X[:1], [[NAN, 1, 0.999, INF]], threshold=1)
    np.testing.assert_array_equal(got, [[3, 5, 0, 1]])
    got = reference("mul_mat_sparse", W, X[:1], [[-1e30, 0, -INF, -1]], threshold=-INF)
    np.testing.assert_array_equal(got, [[3, 5, 8, 1]])


def test_a_bucket_names_the_neurons_of_the_rows() -> None:
    idx = [[0, 1, 0, -1, 0, 1, 0], [0, -1, 0, 1, 0, 1, 1]]
    bucket = ids(1, 3, 5, 6)
    got = reference("mul_mat_sparse", W, X, idx, bucket)
    np.testing.assert_array_equal(got, [[0, 3, 0, 0, 0, 8, 1], [0, 0, 0, 2, 0, 1, -4]])
    got = reference("mul_mat_sparse", W, X[:1], None, bucket, n_ff=8)
    np.testing.assert_array_equal(got, [[0, 3, 0, 5, 0, 8, 1, 0]])


def test_the_other_devices_neurons_are_zero() -> None:
    got = reference("mul_mat_sparse", W, X, None, None, ids(0, 1, 0, 2))
    np.testing.assert_array_equal(got, [[3, 0, 8, 0], [-1, 0, 1, 0]])


def test_rows_weighted_and_added_up() -> None:
    h = [[2, 10, 100, NAN], [1, 0, -1, 1]]
    got = reference("axpy_sparse", W, h, [[0, -1, 0, -1], [0, 0, 0, 0]])
    np.testing.assert_array_equal(got, [[102, 100], [2, -2]])
    got = reference("axpy_sparse", W[:2], h[1:], None, ids(2, 3))
    np.testing.assert_array_equal(got, [[-1, 1]])
    got = reference("axpy_sparse", W, h[1:], None, None, ids(1, 0, 0, 1))
    np.testing.assert_array_equal(got, [[-1, -1]])


def test_a_layer_from_its_parts() -> None:
    # gate 3 5 8 1, up 5 3 8 -4, so h 15 15 64 -4.
    up = [[0, 1], [1, 0], [1, 1], [2, -2]]
    down = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [100, 100, 100]]
    got = reference("sparse_ffn", W, up, down, X[:1])
    np.testing.assert_array_equal(got, [[-385, -385, -336]])
    got = reference("sparse_ffn", W, up, down, X[:1], relu_up=1)
    np.testing.assert_array_equal(got, [[15, 15, 64]])
    # The second token: gate -1 2 1 -4, up 2 -1 1 -6; relu leaves neurons 1 and 2.
    got = reference("sparse_ffn", W, up, down, X, [[0, 0, -1, -1], [0, 0, 0, 0]])
    np.testing.assert_array_equal(got, [[15, 15, 0], [0, -2, 1]])
    got = reference("sparse_ffn", W, up, down, X[:1], None, ids(4, 7, 8, 9))
    np.testing.assert_array_equal(got, [[-385, -385, -336]])
    got = reference("sparse_ffn", W, up, down, X[:1], None, None, ids(0, 1, 1, 1))
    np.testing.assert_array_equal(got, [[15, 0, 0]])


def test_a_layer_without_a_gate() -> None:
    # up 3 5 8 1 of the first token, -1 2 1 -4 of the second.
    down = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [100, 100, 100]]
    got = reference("sparse_ffn", None, W, down, X)
    np.testing.assert_array_equal(got, [[103, 105, 108], [0, 2, 1]])
    got = reference("sparse_ffn", None, W, down, X, [[0, -1, 0, -1], [0, -1, 0, 0]])
    np.testing.assert_array_equal(got, [[3, 0, 8], [0, 0, 1]])
    bias = np.float32([-4, 0, 1, 4])  # 0 5 9 5 and 0 2 2 0
    got = reference("sparse_ffn", None, W, down, X, None, None, None, bias)
    np.testing.assert_array_equal(got, [[500, 505, 509], [0, 2, 2]])
    # Rows of neurons 4 to 7 of nine, of which 5 is another device's: the bias is by neuron.
    bias, there = np.float32([9, 9, 9, 9, -4, 9, 1, 4, 9]), ids(0, 0, 0, 0, 0, 1, 0, 0, 0)
    got = reference("sparse_ffn", None, W, down, X, None, ids(4, 5, 6, 7), there, bias)
    np.testing.assert_array_equal(got, [[500, 500, 509], [0, 0, 2]])


def test_a_cut_makes_small_values_zero() -> None:
    np.testing.assert_array_equal(
        reference("fatrelu", [-9, 0.5, 0.4375, 0.5625, NAN, INF], cut=0.5),
        [0, 0, 0, 0.5625, NAN, INF],
    )
    down = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [100, 100, 100]]
    got = reference("sparse_ffn", None, W, down, X, cut=3)  # of 3 5 8 1 and -1 2 1 -4
    np.testing.assert_array_equal(got, [[0, 5, 8], [0, 0, 0]])
    up = [[0, 1], [1, 0], [1, 1], [2, -2]]  # 5 3 8 -4
    got = reference("sparse_ffn", W, up, down, X[:1], cut=3)
    np.testing.assert_array_equal(got, [[0, 15, 64]])
    got = reference("sparse_ffn", W, up, down, X[:1], cut=3, relu_up=1)
    np.testing.assert_array_equal(got, [[0, 0, 64]])


def test_the_threshold_above_a_cut_leaves_out_what_it_makes_zero() -> None:
    for cut in (0.0, 0.01, 1.0, 1e30):
        x = np.nextafter(np.float32(cut), np.float32([-1e38, cut, 1e38]))
        kept = reference("fatrelu", x, cut=cut) != 0
        np.testing.assert_array_equal(kept, ~(x < np.float32(least_above(cut))))
    assert least_above(0) == LEAST_POSITIVE


def test_n_ff_comes_from_what_knows_it() -> None:
    g = Graph()
    f32, i32 = dtype_by_name("f32"), dtype_by_name("i32")
    w, bucket = g.weight("w", f32, (3, 4)), g.weight("b", i32, (3,))
    x = g.input("x", f32, (2, 4))
    idx, other = g.input("idx", f32, (2, 9)), g.weight("other", i32, (9,))
    assert g.mul_mat_sparse(w, x).shape == (2, 3)
    assert g.mul_mat_sparse(w, x, idx, bucket).shape == (2, 9)
    assert g.mul_mat_sparse(w, x, None, bucket, other).shape == (2, 9)
    assert g.mul_mat_sparse(w, x, None, bucket, n_ff=7).shape == (2, 7)
    assert g.axpy_sparse(w, idx, None, bucket).shape == (2, 4)
