"""rope against rotations by hand, complex multiplication, and YaRN's published constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from harness import reference

from gguflow.engine.ops.rope import yarn_range

RNG = np.random.default_rng(0)


def rope(x: Any, pos: Any, *rest: Any, **params: Any) -> np.ndarray:
    return reference("rope", x, np.asarray(pos, np.int32), *rest, **params)


def test_two_pairs_by_hand() -> None:
    p = 3
    c0, s0, c1, s1 = math.cos(p), math.sin(p), math.cos(p / 100), math.sin(p / 100)
    x = [[[1, 0, 0, 1]]]
    got = rope(x, [p], n_dims=4, mode="norm")  # pairs (1, 0) and (0, 1)
    np.testing.assert_allclose(got, [[[c0, s0, -s1, c1]]], rtol=1e-6)
    got = rope(x, [p], n_dims=4, mode="neox")  # pairs (x0, x2) = (1, 0) and (x1, x3) = (0, 1)
    np.testing.assert_allclose(got, [[[c0, -s1, s0, c1]]], rtol=1e-6)


def test_a_pair_is_a_complex_number_turned() -> None:
    x = RNG.standard_normal((5, 3, 16)).astype(np.float32)
    pos = np.array([0, 1, 7, 100, 4095])
    turn = np.exp(1j * pos[:, None] * 500000.0 ** (-np.arange(8) / 8))[:, None, :]
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
    got = rope(x, pos, n_dims=16, mode="norm", freq_base=500000.0)
    np.testing.assert_allclose(got[..., 0::2] + 1j * got[..., 1::2], z, atol=1e-6)
    z = (x[..., :8] + 1j * x[..., 8:]) * turn
    got = rope(x, pos, n_dims=16, mode="neox", freq_base=500000.0)
    np.testing.assert_allclose(got[..., :8] + 1j * got[..., 8:], z, atol=1e-6)


@pytest.mark.parametrize("mode", ["norm", "neox"])
def test_products_depend_on_the_distance_only(mode: str) -> None:
    q, k = RNG.standard_normal((2, 1, 1, 32)).astype(np.float32)
    near = rope(q, [9], n_dims=32, mode=mode) @ rope(k, [4], n_dims=32, mode=mode).swapaxes(1, 2)
    far = rope(q, [905], n_dims=32, mode=mode) @ rope(k, [900], n_dims=32, mode=mode).swapaxes(1, 2)
    np.testing.assert_allclose(near, far, rtol=1e-5)


@pytest.mark.parametrize("mode", ["norm", "neox"])
def test_dimensions_beyond_n_dims_pass(mode: str) -> None:
    x = RNG.standard_normal((2, 3, 10)).astype(np.float32)
    got = rope(x, [5, 6], n_dims=4, mode=mode)
    np.testing.assert_array_equal(got[..., 4:], x[..., 4:])
    np.testing.assert_array_equal(got[..., :4], rope(x[..., :4], [5, 6], n_dims=4, mode=mode))


@pytest.mark.parametrize("mode", ["norm", "neox"])
def test_scaling_is_a_change_of_position(mode: str) -> None:
    x = RNG.standard_normal((1, 2, 8)).astype(np.float32)
    plain = rope(x, [3], n_dims=8, mode=mode)
    got = rope(x, [12], n_dims=8, mode=mode, freq_scale=0.25)
    np.testing.assert_allclose(got, plain, atol=1e-6)
    got = rope(x, [12], np.full(4, 4, np.float32), n_dims=8, mode=mode)
    np.testing.assert_allclose(got, plain, atol=1e-6)
    got = rope(x, [3], n_dims=8, mode=mode, attn_factor=2.0)
    np.testing.assert_allclose(got, 2 * plain, atol=1e-6)


def test_a_frequency_factor_slows_its_own_pair() -> None:
    factors = np.array([1, 5], np.float32)
    got = rope([[[1, 1, 0, 0]]], [10], factors, n_dims=4, mode="neox")
    angles = np.array([10, 10 * 0.01 / 5])
    np.testing.assert_allclose(got[0, 0], [*np.cos(angles), *np.sin(angles)], rtol=1e-6)


def test_yarn_range_of_llama_2() -> None:
    # dim 128, base 10000, 4096 positions: the authors' code gives pairs 20 to 46.
    assert yarn_range(128, 4096, 10000.0, 32.0, 1.0) == (20, 46)
    assert yarn_range(4, 16, 10000.0, 32.0, 1.0) == (0, 1)  # both ends clamped or rounded up


def test_yarn_blends_between_fast_and_slow_pairs() -> None:
    x = np.zeros((1, 1, 128), np.float32)
    x[..., :64] = 1  # neox: every pair is (1, 0), so it comes out as (cos, sin)
    pos = 1000
    got = rope(x, [pos], n_dims=128, mode="neox", n_ctx_orig=4096, freq_scale=0.25, ext_factor=1.0)
    magnitude = 1 + 0.1 * math.log(4)
    # Pair 5 keeps its speed, 33 is half way between pairs 20 and 46, 60 turns a quarter as fast.
    for pair, share in ((5, 1.0), (20, 1.0), (33, 0.5 + 0.5 * 0.25), (46, 0.25), (60, 0.25)):
        angle = pos * 10000.0 ** (-pair / 64) * share
        expected = magnitude * np.array([math.cos(angle), math.sin(angle)])
        np.testing.assert_allclose(got[0, 0, [pair, 64 + pair]], expected, atol=1e-6)


def test_half_of_yarn_is_half_of_the_blend() -> None:
    x = np.float32([[[1, 0]]])
    got = rope(x, [8], n_dims=2, mode="norm", n_ctx_orig=4096, freq_scale=0.5, ext_factor=0.5)
    angle = 8 * (0.5 * 0.5 + 1.0 * 0.5)  # the only pair is a fast one
    expected = (1 + 0.1 * math.log(2)) * np.array([math.cos(angle), math.sin(angle)])
    np.testing.assert_allclose(got[0, 0], expected, rtol=1e-6)


def test_2d_turns_each_half_by_its_own_position() -> None:
    x = RNG.standard_normal((3, 2, 12)).astype(np.float32)
    pos = [[1, 2, 3], [40, 50, 60]]
    factors = np.array([1, 2, 3, 4], np.float32)
    got = rope(x, pos, factors, n_dims=8, mode="2d")
    for half in (0, 1):
        part = slice(6 * half, 6 * half + 6)
        own = rope(x[..., part], pos[half], factors[2 * half :][:2], n_dims=4, mode="neox")
        np.testing.assert_array_equal(got[..., part], own)
