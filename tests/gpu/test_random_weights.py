"""Weights whose rows repeat the first ones: the device has the bytes of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gguflow.engine.graph import Role, Tensor, dtype_by_name
from gguflow.models.shapes import random_bytes, random_rows

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("dtype", "shape", "stride"),
    [
        ("f16", (256, 96), 192),
        ("f16", (64, 96), 192),
        ("f16", (30, 96), 192),
        ("q4_0", (320, 96), 64),  # rows of 54 bytes, 10 behind each
        ("q4_0", (8192, 4096), 2304),
        ("f32", (100, 32), 128),  # the last repetition is not whole
    ],
)
def test_first_rows_make_the_whole(
    gpu: Any, dtype: str, shape: tuple[int, ...], stride: int
) -> None:
    t = dtype_by_name(dtype)
    weight = Tensor("w", t, shape, Role.WEIGHT, strides=(stride, t.nbytes))
    few, whole = random_rows("w", shape, t), random_bytes("w", shape, t)
    found = gpu.load_weight(weight, few, False)
    expected = gpu.load_weight(weight, whole, False)
    assert found.nbytes == expected.nbytes == stride * shape[0]
    assert np.array_equal(found.read(0, found.nbytes), expected.read(0, expected.nbytes))
