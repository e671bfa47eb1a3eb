"""Input that cannot be converted: typed errors that say what and where."""

from __future__ import annotations

import numpy as np
import pytest

from gguflow.engine.quants import all_codecs, codec, decode, dequantize_any, encode

QUANTIZED = [c.dtype.name for c in all_codecs() if c.dtype.is_quantized and c.writable]


@pytest.mark.parametrize("name", QUANTIZED)
def test_odd_row_length(name: str) -> None:
    block = codec(name).dtype.block
    for n in (1, block - 1, block + 8):
        with pytest.raises(ValueError, match=f"{name}: a row of {n}"):
            encode(name, np.zeros((2, n)))
        with pytest.raises(ValueError, match=f"{name}: a row of {n}"):
            decode(name, np.zeros(4, np.uint8), (2, n))


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e9])
def test_value_out_of_range(name: str, bad: float) -> None:
    x = np.ones((2, 3, 512), np.float32)
    if abs(bad) <= codec(name).limit:
        pytest.skip("mxfp4 reaches as far as float32")
    x[1, 2, 300] = bad
    with pytest.raises(ValueError, match=rf"{name}: element \[1, 2, 300\] is "):
        encode(name, x)


@pytest.mark.parametrize("name", QUANTIZED)
def test_value_at_the_limit(name: str) -> None:
    limit = codec(name).limit
    x = np.linspace(-limit, limit, 256, dtype=np.float32)
    y = decode(name, encode(name, x), x.shape)
    assert np.isfinite(y).all()
    assert np.abs(y - x).max() <= 0.5 * limit  # of ternary types, half a step


@pytest.mark.parametrize("name", QUANTIZED)
def test_split_block(name: str) -> None:
    nbytes = codec(name).dtype.nbytes
    with pytest.raises(ValueError, match=f"{name}: .*whole blocks of {nbytes} bytes"):
        codec(name).dequantize(np.zeros((2, nbytes + 1), np.uint8))
    with pytest.raises(ValueError, match=f"{name}: {nbytes} bytes for shape"):
        decode(name, np.zeros(nbytes, np.uint8), (2, codec(name).dtype.block))


def test_wrong_storage() -> None:
    with pytest.raises(ValueError, match=r"q8_0: rows of int16\[2, 34\]"):
        codec("q8_0").dequantize(np.zeros((2, 34), np.int16))


def test_unknown_type() -> None:
    with pytest.raises(KeyError, match="q9_9"):
        codec("q9_9")
    with pytest.raises(KeyError, match="no codec for i32"):
        codec("i32")


def test_importance() -> None:
    x = np.ones((2, 256), np.float32)
    with pytest.raises(NotImplementedError, match="q4_0: the quantizer takes no importance"):
        encode("q4_0", x, np.ones(256))
    with pytest.raises(ValueError, match=r"q4_K: importance of shape \[2, 256\] for rows of 256"):
        encode("q4_K", x, x)
    with pytest.raises(ValueError, match="q4_K: importance must be finite"):
        encode("q4_K", x, np.full(256, -1.0))


def test_dequantize_any_errors() -> None:
    with pytest.raises(ValueError, match="element type 999 is unknown"):
        dequantize_any(999, np.zeros(1, np.uint8), (1,))
    with pytest.raises(ValueError, match="IQ4_NL: a row of 33"):
        dequantize_any(20, np.zeros(18, np.uint8), (33,))
    with pytest.raises(ValueError, match=r"IQ4_NL: 18 bytes for shape \[2, 32\], which takes 36"):
        dequantize_any(20, np.zeros(18, np.uint8), (2, 32))
    with pytest.raises(NotImplementedError, match="Q8_K"):
        dequantize_any(15, np.zeros(292, np.uint8), (256,))
