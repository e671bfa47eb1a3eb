"""The C++ quantizers and dequantizers against the numpy codecs, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from quant_helpers import DATA, Native

from gguflow.engine.graph import BF16, F16, F32
from gguflow.engine.quants import Codec, all_codecs, codec

TYPES = [c for c in all_codecs() if c.dtype.is_quantized or c.dtype in (F32, F16, BF16)]

WRITABLE = [c for c in TYPES if c.dtype.is_quantized and c.writable]


def by_name(c: Codec) -> str:
    return c.dtype.name


@pytest.mark.parametrize("c", TYPES, ids=by_name)
def test_quantize(native: Native, c: Codec) -> None:
    if not c.writable:
        assert native.lib.gf_quantize_rows(c.dtype.ggml_id, None, None, 0, 256) == 1
        return
    for name, x in DATA.items():
        if np.abs(x).max() > c.limit:
            continue
        expected, got = c.quantize(x), native.quantize(c.dtype, x)
        different = (expected != got).reshape(-1, c.dtype.nbytes).any(axis=-1).mean()
        assert different == 0, f"{name}: {different:.2%} of the blocks differ"


@pytest.mark.parametrize("c", TYPES, ids=by_name)
def test_dequantize(native: Native, c: Codec) -> None:
    rng = np.random.default_rng(5)
    raw = rng.integers(0, 256, (31, 3 * c.dtype.nbytes), dtype=np.uint8)
    expected, got = c.dequantize(raw), native.dequantize(c.dtype, raw)
    assert np.array_equal(np.isnan(expected), np.isnan(got))
    assert np.array_equal(np.nan_to_num(expected).view("u4"), np.nan_to_num(got).view("u4"))


@pytest.mark.parametrize("c", WRITABLE, ids=by_name)
@settings(max_examples=25, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(x=arrays(np.float32, (1, 256), elements=st.floats(-60000, 60000, width=32),
                fill=st.floats(-2, 2, width=32)))  # fmt: skip
def test_any_floats(native: Native, c: Codec, x: np.ndarray) -> None:
    x = np.clip(x, -c.limit, c.limit)
    raw = native.quantize(c.dtype, x)
    assert np.array_equal(raw, c.quantize(x))
    assert np.isfinite(native.dequantize(c.dtype, raw)).all()


def test_every_float16(native: Native) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(1, -1)
    values = native.dequantize(F16, every)
    expected = every.view(np.float16).astype(np.float32)
    assert np.array_equal(values, expected, equal_nan=True)
    back = native.quantize(F16, values).view(np.uint16)[0]
    number = ~np.isnan(expected[0])
    assert np.array_equal(back[number], every.view(np.uint16)[0, number])
    assert np.isnan(back[~number].view(np.float16)).all()


def test_float16_rounding(native: Native) -> None:
    """Values on, just below and just above the middle between neighbouring float16."""
    h = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = np.append((h[:-1] + h[1:]) / 2, np.float32(65520))
    x = np.concatenate([middle, np.nextafter(middle, np.float32(0)),
                        np.nextafter(middle, np.float32(np.inf)), -middle])  # fmt: skip
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).view(np.uint16)
    assert np.array_equal(native.quantize(F16, x[None]).view(np.uint16)[0], expected)


def test_odd_row_lengths_of_plain_types(native: Native) -> None:
    for n in (1, 7, 8, 33):
        x = DATA["normal"][:3, :n].copy()
        for c in map(codec, ("f32", "f16", "bf16")):
            raw = native.quantize(c.dtype, x)
            assert np.array_equal(raw, c.quantize(x))
            assert np.array_equal(native.dequantize(c.dtype, raw), c.dequantize(raw))


def test_status_codes(native: Native) -> None:
    x = np.ones((2, 512), np.float32)
    out = np.full(4096, 0xA5, np.uint8)
    both = (native.lib.gf_quantize_rows, native.lib.gf_dequantize_rows)
    for fn in both:
        assert fn(15, x.ctypes.data, out.ctypes.data, 2, 256) == 1  # Q8_K has no kernels
        assert fn(-1, x.ctypes.data, out.ctypes.data, 2, 256) == 1
        for c in TYPES:
            if c.dtype.is_quantized and c.writable:
                n = c.dtype.block
                for bad in (n - 1, n + 8, -n):
                    assert fn(c.dtype.ggml_id, x.ctypes.data, out.ctypes.data, 2, bad) == 2
            if c.writable:
                assert fn(c.dtype.ggml_id, x.ctypes.data, out.ctypes.data, -1, 256) == 2
                assert fn(c.dtype.ggml_id, x.ctypes.data, out.ctypes.data, 0, 256) == 0
    assert (out == 0xA5).all()


@pytest.mark.parametrize("c", WRITABLE, ids=by_name)
def test_values_out_of_range(native: Native, c: Codec) -> None:
    out = np.empty(4096, np.uint8)
    for bad in (np.nan, np.inf, -np.inf, *([c.limit * 1.001] if c.limit < 1e38 else [])):
        x = np.ones((2, 256), np.float32)
        x[1, 200] = bad
        status = native.lib.gf_quantize_rows(
            c.dtype.ggml_id, x.ctypes.data, out.ctypes.data, 2, 256
        )
        assert status == 3
    x[1, 200] = c.limit
    assert np.array_equal(native.quantize(c.dtype, x), c.quantize(x))
