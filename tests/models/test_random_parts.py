"""Parts of random weights: their rows repeat the first ones, as those of the whole do."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from gguflow.engine.graph import F16, DType, dtype_by_name
from gguflow.engine.load import RepeatedRows, WeightSource
from gguflow.engine.variants.parallel.cuts import Cut
from gguflow.engine.variants.parallel.source import _part, _read
from gguflow.models.shapes import ROWS, random_bytes, random_rows

Q4_0 = dtype_by_name("q4_0")


def source(shape: tuple[int, ...], dtype: DType) -> WeightSource:
    n_rows = int(np.prod(shape[:-1]))
    first = partial(random_rows, "w", shape, dtype)
    read = RepeatedRows(first, min(n_rows, ROWS), n_rows)
    return WeightSource("w", dtype, shape, read, lambda: None)


@pytest.mark.parametrize(
    ("shape", "dtype", "cut", "repeats"),
    [
        ((256, 96), F16, Cut(0, (0, 128, 256)), True),
        ((256, 96), F16, Cut(1, (0, 40, 96)), True),
        ((256, 128), Q4_0, Cut(1, (0, 96, 128)), True),
        ((200, 128), Q4_0, Cut(0, (0, 100, 200)), False),  # begins within a repetition
        ((30, 64), F16, Cut(0, (0, 15, 30)), False),
        ((4, 128, 64), F16, Cut(1, (0, 64, 128)), True),
        ((4, 96, 64), F16, Cut(1, (0, 48, 96)), False),
        ((64,), F16, Cut(0, (0, 32, 64)), False),
    ],
)
def test_parts_have_the_bytes_of_the_whole(
    shape: tuple[int, ...], dtype: DType, cut: Cut, repeats: bool
) -> None:
    w = source(shape, dtype)
    assert w.read().tobytes() == random_bytes("w", shape, dtype).tobytes()
    for k in range(2):
        part = _part(w, cut, k)
        assert isinstance(part.read, RepeatedRows) == repeats
        assert part.read().tobytes() == _read(w, cut, k).tobytes()
        if isinstance(part.read, RepeatedRows):
            assert len(part.read.first()) == part.read.n_first <= ROWS
