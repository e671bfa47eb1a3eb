"""attention against sums by hand and against its composition from soft_max."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from harness import reference

from gguflow.engine.plan_key import PAGE


def column(*values: float) -> np.ndarray:
    """One head of size one: [rows, 1, 1]."""
    return np.array(values, np.float32).reshape(-1, 1, 1)


def attend(
    q: Any, k: Any, v: Any, pos: Any, seq: Any = 0, table: Any = ((0,),), **params: Any
) -> np.ndarray:
    """k, v: rows from the first page on; what is missing of the last one is NaN."""
    missing = -len(k) % PAGE
    k, v = (np.pad(x, ((0, missing), (0, 0), (0, 0)), constant_values=np.nan) for x in (k, v))
    pos, table = np.asarray(pos, np.int32), np.asarray(table, np.int32)
    seq = np.broadcast_to(np.int32(seq), pos.shape)
    return reference("attention", q, k, v, pos, seq, table, **{"scale": 1.0, **params}).reshape(-1)


def test_weights_are_the_softmax_of_the_scores() -> None:
    k = column(0, math.log(2), math.log(5))
    got = attend(column(1), k, column(1, 10, 100), [2])
    np.testing.assert_allclose(got, [(1 + 20 + 500) / 8], rtol=1e-6)
    got = attend(column(1), k, column(1, 10, 100), [2], scale=2.0)
    np.testing.assert_allclose(got, [(1 + 40 + 2500) / 30], rtol=1e-6)


def test_keys_after_the_position_are_not_seen() -> None:
    k, v = column(0, 0, 0), column(1, 2, 6)
    got = attend(column(0, 0, 0, 0), k, v, [1, 0, 2, -1])
    np.testing.assert_allclose(got, [1.5, 1, 3, 0])


def test_a_window_counts_the_token_itself() -> None:
    k, v = column(0, 0, 0, 0), column(1, 2, 6, 100)
    for window, expected in ((1, 6), (2, 4), (3, 3), (9, 3), (0, 3)):
        np.testing.assert_allclose(attend(column(0), k, v, [2], window=window), [expected])


def test_softcap_bounds_the_score() -> None:
    k = column(0, math.atanh(math.log(2)))  # capped at one this is ln 2
    got = attend(column(1), k, column(1, 10), [1], softcap=1.0)
    np.testing.assert_allclose(got, [7], rtol=1e-6)


def test_alibi_lowers_by_distance() -> None:
    k, v = column(0, 0, 0), column(1, 0, 0)
    e = math.exp(-0.5)  # one head with max_bias 1: slope 1/2
    got = attend(column(0), k, v, [2], max_bias=1.0)
    np.testing.assert_allclose(got, [e * e / (1 + e + e * e)], rtol=1e-6)


def test_heads_share_kv_heads_in_runs() -> None:
    q = np.zeros((1, 4, 1), np.float32)
    k = np.zeros((2, 2, 1), np.float32)
    v = np.float32([[[1], [10]], [[3], [30]]])
    np.testing.assert_array_equal(attend(q, k, v, [1]), [2, 2, 20, 20])


def test_it_is_soft_max_between_two_products() -> None:
    rng = np.random.default_rng(0)
    n_tok, n_ctx, heads, kv_heads, hd = 4, 9, 6, 3, 8
    q = rng.standard_normal((n_tok, heads, hd)).astype(np.float32)
    k, v = rng.standard_normal((2, n_ctx, kv_heads, hd)).astype(np.float32)
    pos = np.array([5, 6, 7, 8])
    i, j = pos[:, None], np.arange(n_ctx)
    mask = np.where((j <= i) & (i - j < 3), (j - i) * 1.0, -np.inf).astype(np.float32)
    scores = reference("mul_mat", k.transpose(1, 0, 2), q.transpose(1, 0, 2))
    p = reference("soft_max", scores, mask, scale=0.3, max_bias=8.0)
    y = reference("mul_mat", v.transpose(1, 2, 0), p).transpose(1, 0, 2)
    got = attend(q, k, v, pos, scale=0.3, max_bias=8.0, window=3)
    np.testing.assert_allclose(got, y.reshape(-1), rtol=1e-5, atol=1e-6)


def test_keys_are_found_through_the_table() -> None:
    k = np.zeros((3 * PAGE, 1, 1), np.float32)
    v = np.repeat(np.float32([1, 10, 100]), PAGE).reshape(-1, 1, 1)
    table = [[2, 0, -1], [1, -1, -1]]
    got = attend(column(0, 0, 0, 0), k, v, [63, 64, 127, 5], [0, 0, 0, 1], table)
    np.testing.assert_allclose(got, [100, (64 * 100 + 1) / 65, 50.5, 10], rtol=1e-6)


def test_pages_that_are_not_there_are_not_seen() -> None:
    k, v = np.zeros((PAGE, 1, 1), np.float32), np.full((PAGE, 1, 1), 3, np.float32)
    table = [[-1, 0]]
    np.testing.assert_allclose(attend(column(0, 0), k, v, [70, 3], 0, table), [3, 0])
    np.testing.assert_allclose(attend(column(0), k, v, [70], 0, [[0, -1]]), [3])
    np.testing.assert_allclose(attend(column(0, 0), k, v, [5, 5], [-1, 0], [[0]]), [0, 3])
