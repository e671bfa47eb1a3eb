"""Quantized weights times any number of columns have the bits of the order that int8_columns.cuh
describes (int8_order.py): which kernel departs from it, where two do not agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import Built, nmse, run_on
from int8_order import UNPACKED, products, whole_columns
from sizes import fewer
from test_mul_mat_integers import SHAPES_8B, TOGETHER

from gguflow.engine.backends.base import find_backend
from gguflow.engine.graph import F32, Graph, dtype_by_name
from gguflow.engine.quants import decode
from gguflow.models.shapes import random_rows

MOST = 512
SHAPES = fewer([TOGETHER], SHAPES_8B)
COUNTS = fewer((1, 9, 64, MOST), (1, 2, 3, 8, 9, 12, 16, 17, 32, 64, 65, 128, MOST))


@pytest.fixture(scope="module")
def gpu(gpu: Any) -> Any:
    """The backend on which a column has the same bits beside any number of others."""
    return find_backend("cuda", {"equal_bits": True})


@pytest.mark.parametrize("dtype", UNPACKED)
def test_the_order_is_a_product(dtype: str) -> None:
    k = 1280  # of chunks that do not fill the quarters
    raw, x = random_rows("w", (8, k), dtype_by_name(dtype)), whole_columns(3, k)
    exact = x.astype(np.float64) @ decode(dtype, raw.reshape(-1), (8, k)).astype(np.float64).T
    assert nmse(products(UNPACKED[dtype](8, raw), x), exact) < 1e-13


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", UNPACKED)
@pytest.mark.parametrize("n, k", SHAPES)
def test_every_number_of_columns_has_the_order(gpu: Any, dtype: str, n: int, k: int) -> None:
    t, x = dtype_by_name(dtype), whole_columns(MOST, k)
    few = random_rows("w", (n, k), t)
    which = np.random.default_rng(7).integers(len(few), size=n)
    expected = products(UNPACKED[dtype](len(few), few), x)[:, which]
    raw, wrong = few[which].reshape(-1), {}
    for m in COUNTS:
        g = Graph()
        node = g.op("mul_mat", g.weight("w", t, (n, k)), g.input("x", F32, (m, k)))
        feeds = {"w": raw, "x": x[:m].reshape(-1).view(np.uint8)}
        found = run_on(gpu, Built(g, node, feeds, np.zeros((m, n)), feeds, 0.0))
        columns, rows = np.nonzero(found != expected[:m])
        if len(rows):
            wrong[m] = (len(rows), sorted(set(columns))[:8], sorted(set(rows))[:8])
    assert not wrong, f"columns: (values, which columns, which rows) {wrong}"
