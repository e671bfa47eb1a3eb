"""How much a round trip costs: the field's limits, llama.cpp's own results, importance."""

from __future__ import annotations

import numpy as np
import pytest
from quant_helpers import heavy_data, normal_data

from gguflow.engine.quants import codec, decode, encode

# sqrt(sum of squares) / n over 4096 values of 0.1 + 2 cos(i): the data and limits of llama.cpp's
# test-quantize-fns.
LIMITS = (
    {"q2_K": 0.0075, "q3_K": 0.0040}
    | dict.fromkeys(
        ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_K", "q5_K", "q6_K", "iq4_nl", "iq4_xs"), 0.002
    )
    | {"mxfp4": 0.004, "nvfp4": 0.004, "tq1_0": 0.01, "tq2_0": 0.01}
)


@pytest.mark.parametrize("name", LIMITS)
def test_round_trip_within_the_fields_limit(name: str) -> None:
    x = (0.1 + 2 * np.cos(np.arange(4096))).astype(np.float32)
    error = decode(name, encode(name, x), x.shape).astype(np.float64) - x
    assert np.sqrt((error**2).sum()) / x.size <= LIMITS[name]


# RMSE of what llama.cpp's llama-quantize --pure writes for normal_data(256, 1024) and
# heavy_data(256, 1024).
LLAMA_CPP: dict[str, tuple[float, float]] = {
    "q4_0": (5.299568e-03, 9.303095e-03),
    "q4_1": (4.847216e-03, 1.156053e-02),
    "q5_0": (2.626189e-03, 6.077333e-03),
    "q5_1": (2.342206e-03, 5.700832e-03),
    "q8_0": (3.296437e-04, 1.214536e-03),
    "q2_K": (1.833093e-02, 2.906474e-02),
    "q3_K": (9.325319e-03, 1.075399e-02),
    "q4_K": (4.419437e-03, 7.445444e-03),
    "q5_K": (2.230714e-03, 4.649205e-03),
    "q6_K": (1.092553e-03, 2.791370e-03),
    "iq4_nl": (4.708364e-03, 8.583854e-03),
    "iq4_xs": (4.743506e-03, 8.827641e-03),
    "mxfp4": (7.159156e-03, 1.500112e-02),
    "nvfp4": (5.962907e-03, 6.287854e-03),
    "tq1_0": (4.984717e-02, 4.907159e-02),
    "tq2_0": (4.984717e-02, 4.907159e-02),
}  # fmt: skip


@pytest.mark.parametrize("name", LLAMA_CPP)
def test_as_good_as_llama_cpp(name: str) -> None:
    for x, theirs in zip((normal_data(256, 1024), heavy_data(256, 1024)), LLAMA_CPP[name],
                         strict=True):  # fmt: skip
        error = decode(name, encode(name, x), x.shape).astype(np.float64) - x
        assert np.sqrt((error**2).mean()) <= 1.01 * theirs


def test_every_quantizer_has_a_witness() -> None:
    assert set(LLAMA_CPP) == set(LIMITS)


@pytest.mark.parametrize("name", ["q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_nl", "iq4_xs"])
def test_importance_moves_the_error_to_other_columns(name: str) -> None:
    x = heavy_data(64, 512)
    important = np.arange(512) % 4 == 0
    weights = np.where(important, 100, 1)

    def error(importance: np.ndarray | None) -> np.float64:
        y = decode(name, encode(name, x, importance), x.shape).astype(np.float64)
        return ((y - x)[:, important] ** 2).mean()

    assert error(weights) < 0.95 * error(None)


@pytest.mark.parametrize("name", ["q4_K", "q6_K"])
def test_rows_are_quantized_alone(name: str) -> None:
    """A row's bytes do not depend on its neighbours, on chunking or on the array's shape."""
    x = np.concatenate([normal_data(3, 768), heavy_data(600, 768)])
    for importance in (None, np.arange(768) % 5):
        whole = codec(name).quantize(x.reshape(3, 201, 768), importance).reshape(603, -1)
        for row in (0, 2, 511, 602):
            assert np.array_equal(codec(name).quantize(x[row], importance), whole[row])
