"""add .. div, the unary functions, gated activations, scale and clamp, against values by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from harness import reference
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    "op, expected",
    [
        ("add", [[11, 22, 13, 24], [35, 46, 37, 48]]),
        ("sub", [[-9, -18, -7, -16], [-25, -34, -23, -32]]),
        ("mul", [[10, 40, 30, 80], [150, 240, 210, 320]]),
        ("div", [[0.1, 0.1, 0.3, 0.2], [1 / 6, 0.15, 7 / 30, 0.2]]),
    ],
)
def test_a_shorter_operand_repeats(op: str, expected: list[list[float]]) -> None:
    a = [[1, 2, 3, 4], [5, 6, 7, 8]]
    b = [[10, 20], [30, 40]]  # columns 0 and 2 of a meet column 0 of b
    np.testing.assert_allclose(reference(op, a, b), np.float32(expected), rtol=1e-6)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_dimension_is_read_modulo_its_length(data: st.DataObject) -> None:
    shape_a = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    kept = data.draw(st.integers(1, len(shape_a)))
    divisors = [[d for d in range(1, n + 1) if n % d == 0] for n in shape_a[-kept:]]
    shape_b = tuple(data.draw(st.sampled_from(d)) for d in divisors)
    rng = np.random.default_rng(0)
    a = rng.standard_normal(shape_a).astype(np.float32)
    b = rng.uniform(1, 2, shape_b).astype(np.float32)
    for op, f in (
        ("add", lambda p, q: p + q),
        ("sub", lambda p, q: p - q),
        ("mul", lambda p, q: p * q),
        ("div", lambda p, q: p / q),
    ):
        got = reference(op, a, b)
        assert got.shape == a.shape
        for index in np.ndindex(*shape_a):
            at = tuple(i % n for i, n in zip(index[-kept:], shape_b, strict=True))
            assert got[index] == f(a[index], b[at])


# Phi(1) and Phi(2) are the normal distribution's, from tables.
PHI_1, PHI_2 = 0.8413447460685429, 0.9772498680518208


@pytest.mark.parametrize(
    "op, x, expected",
    [
        ("silu", [0, 1, -2, 40], [0, 0.7310585786300049, -0.2384058440442351, 40]),
        ("silu", [-1e4, 1e4], [0, 1e4]),
        ("gelu", [0, 1, -1, 3], [0, 0.8411919906, -0.1588080094, 2.9963627]),
        ("gelu", [-1e4, 1e4], [0, 1e4]),
        ("gelu_erf", [0, 1, -1, 2], [0, PHI_1, PHI_1 - 1, 2 * PHI_2]),
        ("gelu_erf", [-1e4, 1e4], [0, 1e4]),
        ("relu", [-3, -0.0, 0.5], [0, 0, 0.5]),
        ("sigmoid", [0, 2, -2, 1e4, -1e4], [0.5, 0.8807970779778823, 0.1192029220221175, 1, 0]),
        ("tanh", [0, 1, -1, 1e4], [0, 0.7615941559557649, -0.7615941559557649, 1]),
        ("exp", [0, 1, -1, 89, -200], [1, math.e, 1 / math.e, np.inf, 0]),
        ("neg", [1, -2, 0], [-1, 2, 0]),
        ("sqr", [3, -4, 1e-30], [9, 16, 0]),
        ("sqrt", [9, 2, 0, -1], [3, 1.4142135623730951, 0, np.nan]),
        ("abs", [-3, 4, -0.0], [3, 4, 0]),
    ],
)
def test_unary(op: str, x: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(reference(op, x), np.float32(expected), rtol=2e-7, atol=1e-30)


@pytest.mark.parametrize(
    "op, expected",
    [
        ("swiglu", [0.7310585786300049 * 2, -0.2384058440442351 * 3]),
        ("geglu", [0.8411919906082768 * 2, -0.0454023059 * 3]),
        ("reglu", [2, 0]),
    ],
)
def test_gated(op: str, expected: list[float]) -> None:
    gate, up = [[1.0, -2.0]], [[2.0, 3.0]]
    np.testing.assert_allclose(reference(op, gate, up), [expected], rtol=1e-6)
    # One operand: the first half is the gate.
    np.testing.assert_allclose(reference(op, [[1.0, -2.0, 2.0, 3.0]]), [expected], rtol=1e-6)
    np.testing.assert_allclose(reference(op, [[1.0, 2.0]]), [expected[:1]], rtol=1e-6)


def test_scale_and_clamp() -> None:
    np.testing.assert_array_equal(reference("scale", [1, -2], s=3.0, b=0.5), [3.5, -5.5])
    np.testing.assert_array_equal(reference("scale", [1, -2], s=3.0), [3, -6])
    got = reference("clamp", [-9, -1, 0.5, 9, -np.inf], min=-2.0, max=1.0)
    np.testing.assert_array_equal(got, [-2, -1, 0.5, 1, -2])
