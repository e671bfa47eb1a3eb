"""Plan sizes: every run has one, few runs have another, and the largest needs the largest arena."""

from __future__ import annotations

import itertools

import pytest

from gguflow.engine.plan_key import PlanKey
from gguflow.engine.serving.buckets import Buckets, bucket


def test_powers_of_two() -> None:
    assert [bucket(n, 1, 100) for n in (1, 2, 3, 5, 64, 65, 100)] == [1, 2, 4, 8, 64, 100, 100]
    assert [bucket(n, 16, 512) for n in (1, 16, 17, 512)] == [16, 16, 32, 512]
    assert bucket(101, 1, 100) == 128  # more than is usual, but asked for


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(("n_seqs", "n_chunk"), [(1, 512), (1, 1), (4, 64), (5, 100), (16, 3)])
def test_every_run_fits_its_plan(n_seqs: int, n_chunk: int, live: bool) -> None:
    sizes = Buckets(n_seqs, n_chunk, live)
    keys = set()
    pieces = [(0, 0), *((c, p) for c in range(1, n_chunk + 1) for p in (1, min(c, n_seqs)))]
    for n_single, (chunk, n_pieces) in itertools.product(range(n_seqs + 1), pieces):
        m = n_single + n_pieces
        if not 1 <= m <= n_seqs:
            continue
        for n_out, sample in ((0, False), (m, True), (n_single, n_single > 0)):
            key = sizes.key(n_single, chunk, m, n_out, False, sample)
            keys.add(key)
            rows = key.n_tokens if live or n_chunk == 1 else key.n_chunk
            assert key.n_seqs >= m and rows >= chunk and key.n_tokens >= n_single + chunk
            assert key.n_out >= n_out and key.sample == sample
            assert key.n_tokens <= sizes.largest.n_tokens and key.n_out <= sizes.largest.n_out
    assert len(keys) <= (6 if live else 150)


def test_single_rows_have_a_plan_of_their_own() -> None:
    for sizes in (Buckets(8, 512), Buckets(8, 512, True)):
        assert sizes.key(1, 0, 1, 1, False, True) == PlanKey(1, 0, 1, 1, True)
        assert sizes.key(8, 0, 8, 8, False, True) == PlanKey(8, 0, 8, 8, True)
    assert Buckets(1, 1).key(0, 1, 1, 1, False, True) == PlanKey(1, 0, 1, 1, True)


def test_logits_of_every_row() -> None:
    assert Buckets(1, 512).key(0, 300, 1, 300, True, False) == PlanKey(0, 384, 1, 384)
    assert Buckets(1, 512).key(0, 400, 1, 400, True, False) == PlanKey(0, 512, 1, 512)
    assert Buckets(1, 512, True).key(0, 20, 1, 20, True, False) == PlanKey(0, 32, 1, 32)
