"""rms_norm, layer_norm and soft_max against values by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from harness import reference

from gguflow.engine.ops._common import alibi_slopes


def test_rms_norm() -> None:
    got = reference("rms_norm", [[3, 4], [1, 1]], eps=0.0)
    np.testing.assert_allclose(got, [[3 / math.sqrt(12.5), 4 / math.sqrt(12.5)], [1, 1]], rtol=1e-7)
    np.testing.assert_allclose(reference("rms_norm", [[1, 1]], eps=3.0), [[0.5, 0.5]])
    np.testing.assert_array_equal(reference("rms_norm", [[0, 0]], eps=1e-5), [[0, 0]])


def test_rms_norm_mul() -> None:
    got = reference("rms_norm_mul", [[1, -1]], [2, 5], eps=3.0)
    np.testing.assert_allclose(got, [[1, -2.5]])


def test_layer_norm() -> None:
    x = [[1, 2, 3, 4, 5]]  # mean 3, variance 2
    unit = np.float32([[-2, -1, 0, 1, 2]]) / np.float32(math.sqrt(2))
    np.testing.assert_allclose(reference("layer_norm", x, eps=0.0), unit, rtol=1e-6)
    w, b = [1, 2, 3, 4, 5], [10, 20, 30, 40, 50]
    for given, expected in (
        ((w,), unit * w),
        ((w, b), unit * w + b),
        ((None, b), unit + b),
    ):
        got = reference("layer_norm", x, *given, eps=0.0)
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    got = reference("layer_norm", [[1, 2, 3, 4, 5]], eps=2.0)
    np.testing.assert_allclose(got, [[-1, -0.5, 0, 0.5, 1]])


def test_layer_norm_keeps_a_small_variance_beside_a_large_mean() -> None:
    got = reference("layer_norm", [[4097, 4099]], eps=0.0)
    np.testing.assert_allclose(got, [[-1, 1]])


def test_soft_max() -> None:
    x = [[0, math.log(2), math.log(3)]]
    np.testing.assert_allclose(reference("soft_max", x), [[1 / 6, 1 / 3, 1 / 2]], rtol=1e-6)
    got = reference("soft_max", x, scale=2.0)
    np.testing.assert_allclose(got, [[1 / 14, 4 / 14, 9 / 14]], rtol=1e-6)
    got = reference("soft_max", x, [[0, 0, -np.inf]])
    np.testing.assert_allclose(got, [[1 / 3, 2 / 3, 0]], rtol=1e-6)
    got = reference("soft_max", [[0, 0]], [[0, math.log(3)], [9, 9]])  # the mask has rows to spare
    np.testing.assert_allclose(got, [[1 / 4, 3 / 4]], rtol=1e-6)


def test_soft_max_extremes() -> None:
    np.testing.assert_array_equal(reference("soft_max", [[1e4, 1e4, -1e4]]), [[0.5, 0.5, 0]])
    np.testing.assert_array_equal(reference("soft_max", [[1.0, 2.0]], [[-np.inf] * 2]), [[0, 0]])


@pytest.mark.parametrize(
    "n_head, exponents",
    [
        (1, [8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),  # the paper's own example
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (3, [4, 8, 2]),
    ],
)
def test_alibi_slopes(n_head: int, exponents: list[float]) -> None:
    np.testing.assert_allclose(alibi_slopes(n_head, 8.0), 2.0 ** -np.array(exponents))
    np.testing.assert_array_equal(alibi_slopes(n_head, 0.0), np.ones(n_head))


def test_soft_max_scales_the_mask_by_the_head() -> None:
    x = np.zeros((2, 1, 2), np.float32)
    got = reference("soft_max", x, [[-1, 0]], max_bias=2.0)  # slopes 1/2 and 1/4
    odds = np.exp([-0.5, -0.25])
    np.testing.assert_allclose(got[:, 0, 0], odds / (1 + odds), rtol=1e-6)
