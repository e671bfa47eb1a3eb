"""Types read through the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from gguflow.engine.quants import dequantize_any

NAMES = [
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ3_XXS",
    "IQ3_S",
    "IQ1_S",
    "IQ1_M",
    "IQ4_NL",
    "IQ4_XS",
    "TQ1_0",
    "TQ2_0",
    "MXFP4",
    "NVFP4",
]
KINDS = [k for k in gguf.GGMLQuantizationType if k.name in NAMES]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # gguf's own, of infinite scales
def test_as_the_gguf_package(
    kind: gguf.GGMLQuantizationType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gguflow.engine.quants.other._CHUNK_BYTES", 1 << 14)  # several chunks
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    n = 512
    rng = np.random.default_rng(int(kind))
    raw = rng.integers(0, 256, (3, 7, n // block * nbytes), dtype=np.uint8)
    ours = dequantize_any(int(kind), raw.reshape(-1), (3, 7, n))
    assert ours.shape == (3, 7, n) and ours.dtype == np.float32
    assert np.array_equal(ours, gguf.quants.dequantize(raw, kind), equal_nan=True)


def test_no_rows() -> None:
    assert dequantize_any(20, np.zeros(0, np.uint8), (0, 32)).shape == (0, 32)
