"""Weights are packed a few rows at a time: whoever waits for one call can leave soon."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from gguflow.engine.backends.cpu import packing
from gguflow.engine.backends.cpu.backend import CpuBackend
from gguflow.engine.graph import dtype_by_name

Q8_0 = dtype_by_name("q8_0")


@pytest.mark.parametrize("n_threads", [1, 2])
def test_one_call_packs_no_more_than_a_few_rows(
    monkeypatch: pytest.MonkeyPatch, n_threads: int
) -> None:
    lib = CpuBackend(n_threads).lib
    n_rows, n_cols = 16 * 9 + 3, 64
    raw = np.random.default_rng(0).integers(0, 256, n_rows * Q8_0.row_bytes(n_cols), np.uint8)
    whole, parts = (np.zeros(lib.packed_bytes(Q8_0, n_rows, n_cols), np.uint8) for _ in range(2))
    packer = packing.NativePacker(lib, n_threads)
    packer._rows(Q8_0, raw, whole, n_rows, n_cols, 1)

    calls: list[int] = []
    pack = lib.cdll.gf_pack_rows

    class Watched:
        def gf_pack_rows(self, *args: ctypes._SimpleCData[int]) -> int:
            calls.append(args[-1].value - args[-2].value)
            return int(pack(*args))

    monkeypatch.setattr(packing, "AT_ONCE", 2 * 16 * Q8_0.row_bytes(n_cols))
    monkeypatch.setattr(lib, "cdll", Watched())
    packer._rows(Q8_0, raw, parts, n_rows, n_cols, n_threads)
    assert calls == [2] * 5  # ten groups of rows
    np.testing.assert_array_equal(parts, whole)
