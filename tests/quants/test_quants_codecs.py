"""The numpy codecs against the gguf package, blocks written by hand and values that fit exactly."""

from __future__ import annotations

import zlib

import gguf
import make_grids
import numpy as np
import pytest
from make_grids import DIRECTORY, headers
from quant_helpers import DATA

from gguflow.engine.graph import BF16, F16, I32, all_dtypes, dtype_by_id
from gguflow.engine.quants import Codec, all_codecs, codec, decode, encode

QUANTIZED = [c for c in all_codecs() if c.dtype.is_quantized]
TABLES = ["iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "tq1_0", "tq2_0"]
GRIDS = ["iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"]
LEGACY = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]


def by_name(c: Codec) -> str:
    return c.dtype.name


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the last bit, all NaN alike."""
    return np.array_equal(np.isnan(a), np.isnan(b)) and np.array_equal(
        np.nan_to_num(a).view(np.uint32), np.nan_to_num(b).view(np.uint32)
    )


def random_bytes(c: Codec, rows: int, blocks: int) -> np.ndarray:
    rng = np.random.default_rng(c.dtype.ggml_id)
    return rng.integers(0, 256, (rows, blocks * c.dtype.nbytes), dtype=np.uint8)


def test_every_type_of_the_engine_is_here() -> None:
    names = {c.dtype.name for c in QUANTIZED}
    assert names == {*LEGACY, "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", *TABLES, *GRIDS}
    assert {c.dtype.name for c in QUANTIZED if not c.writable} == set(GRIDS)
    assert names == {d.name for d in all_dtypes() if d.is_quantized}


@pytest.mark.parametrize("c", QUANTIZED, ids=by_name)
def test_layout_agrees_with_gguf(c: Codec) -> None:
    kind = gguf.GGMLQuantizationType(c.dtype.ggml_id)
    assert gguf.GGML_QUANT_SIZES[kind] == (c.dtype.block, c.dtype.nbytes)
    assert kind.name.lower() == c.dtype.name.lower()
    assert dtype_by_id(c.dtype.ggml_id) is c.dtype


@pytest.mark.parametrize("c", QUANTIZED, ids=by_name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # gguf's own, of infinite scales
def test_dequantize_agrees_with_gguf(c: Codec) -> None:
    raw = random_bytes(c, 37, 3)
    ours = c.dequantize(raw)
    assert ours.dtype == np.float32 and ours.shape == (37, 3 * c.dtype.block)
    theirs = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(c.dtype.ggml_id))
    assert same_bits(ours, theirs)


@pytest.mark.parametrize("name", [*LEGACY, "mxfp4", "tq1_0", "tq2_0"])
@pytest.mark.parametrize("data", ["normal", "heavy", "positive", "small", "large", "zeros"])
def test_quantize_agrees_with_gguf(name: str, data: str) -> None:
    kind = gguf.GGMLQuantizationType(codec(name).dtype.ggml_id)
    assert np.array_equal(codec(name).quantize(DATA[data]), gguf.quants.quantize(DATA[data], kind))


ONE, HALF, MINUS_TWO = (0x00, 0x3C), (0x00, 0x38), (0x00, 0xC0)  # float16, little-endian

# Blocks of zeros but for the bytes given; the elements that follow, worked out by hand.
BLOCKS = [
    ("q4_0", [(0, *HALF), (2, 0x9F)], {0: 3.5, 16: 0.5, 1: -4.0}),
    ("q4_1", [(0, *HALF), (2, *ONE), (19, 0x3A)], {15: 6.0, 31: 2.5, 0: 1.0}),
    # fifth bits of elements 1 and 31; low bits 0x2 and 0xF
    ("q5_0", [(0, *HALF), (2, 0x02, 0, 0, 0x80), (7, 0x02), (21, 0xF0)],
     {1: 1.0, 31: 7.5, 0: -8.0}),
    ("q5_1", [(0, *HALF), (2, *ONE), (4, 0x02, 0, 0, 0x80), (9, 0x02), (23, 0xF0)],
     {1: 10.0, 31: 16.5, 0: 1.0}),
    ("q8_0", [(0, *MINUS_TWO), (2, 0x7F), (33, 0x80)], {0: -254.0, 31: 256.0, 1: 0.0}),
    # sub-block 9: scale 3, min 2; 11: scale 1. Byte 64 = 3 2 1 2 for elements 240, 208, 176, 144.
    ("q2_K", [(9, 0x23), (11, 0x01), (64, 0xE6), (80, *ONE), (82, *HALF)],
     {144: 5.0, 145: -1.0, 176: 1.0, 208: 0.0, 0: 0.0}),
    # scale of sub-block 9 is 0x2F - 32 = 15 (low bits in the high half of byte 97, high bits at
    # 2 * (9 / 4) of byte 105); all others are -32. Element 144 has q = 2 and its third bit.
    ("q3_K", [(16, 0x10), (80, 0x02), (97, 0xF0), (105, 0x20), (108, *ONE)],
     {144: 30.0, 145: -60.0, 0: 128.0}),
    # scale 5: low 3, high 2 bits 1 -> 19; min 5: low 2, high 2 -> 34; element 160 + 1 has q = 13.
    ("q4_K", [(0, *ONE), (2, *HALF), (5, 0x41), (9, 0x80), (13, 0x23), (16 + 65, 0xD4)],
     {161: 230.0, 160: -17.0, 32: 0.0, 129: 0.0}),
    ("q5_K", [(0, *ONE), (2, *HALF), (5, 0x41), (9, 0x80), (13, 0x23), (17, 0x20), (48 + 65, 0xD4)],
     {161: 534.0, 160: -17.0, 129: 0.0}),
    # sub-block 13 (elements 208..223): low bits in the high half of byte 64 + 16, high bits at
    # shift 4 of byte 128 + 32 + 16. q = 0x2B - 32 = 11, scale -3.
    # codes 0 and 15 of elements 1 and 17
    ("iq4_nl", [(0, *HALF), (3, 0xF0)], {1: -63.5, 17: 56.5, 0: -63.5}),
    # scale 5: low 3 (high half of byte 6), high 2 bits 3 at bit 10 of bytes 2..3: 51 - 32 = 19
    ("iq4_xs", [(0, *ONE), (3, 0x0C), (6, 0x30), (8 + 80, 0x98)],
     {160: 19.0, 176: 247.0, 0: 32 * 127.0}),
    ("mxfp4", [(0, 129), (3, 0xF7)], {2: 24.0, 18: -24.0, 0: 0.0}),  # 2^(129 - 128) * 12
    ("nvfp4", [(1, 0x40), (4 + 8, 0x9A)], {16: -2.0, 24: -1.0, 0: 0.0}),  # 0x40 is two
    ("tq1_0", [(0, 0x80), (52, *HALF)], {0: 0.0, 32: 0.0, 1: -0.5}),  # 0.1111.. in base three
    ("tq2_0", [(0, 0xE4), (64, *HALF)], {0: -0.5, 32: 0.0, 64: 0.5, 1: -0.5}),
    ("q6_K", [(80, 0xB0), (176, 0x20), (205, 0xFD), (208, *HALF)], {208: -16.5, 209: 48.0, 0: 0.0}),
]  # fmt: skip


@pytest.mark.parametrize("name, writes, expected", BLOCKS, ids=[b[0] for b in BLOCKS])
def test_hand_written_block(
    name: str, writes: list[tuple[int, ...]], expected: dict[int, float]
) -> None:
    c = codec(name)
    raw = np.zeros(c.dtype.nbytes, np.uint8)
    for at, *values in writes:
        raw[at : at + len(values)] = values
    got = c.dequantize(raw)
    assert {i: float(got[i]) for i in expected} == expected


def test_hand_written_quantize() -> None:
    x = np.zeros(32, np.float32)
    x[:4] = [-8, 3.5, 7.9, -3.4]
    raw = codec("q4_0").quantize(x)
    assert raw[:6].tolist() == [*ONE, 0x80, 0x8C, 0x8F, 0x85]  # 3.5 rounds up to 4, 7.9 is cut to 7
    x[:4] = [127, -1.5, 0.5, 0.49]
    raw = codec("q8_0").quantize(x)
    assert raw[:6].tolist() == [*ONE, 127, 0xFE, 1, 0]  # halves go away from zero


def codes(lo: int, hi: int) -> np.ndarray:
    """256 whole numbers in lo..hi, both ends in every 16."""
    x = lo + (uniform_ints(256) % (hi - lo + 1))
    x[0::16], x[7::16] = lo, hi
    return x.astype(np.float32)


def uniform_ints(n: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 1 << 30, n)


# Values on a grid whose scale the format holds without rounding.
EXACT = {
    "q4_0": codes(-8, 7),
    "q4_1": codes(0, 15) / 4 - 100,
    "q5_0": codes(-16, 15),
    "q5_1": codes(0, 31) / 4 - 100,
    "q8_0": codes(-127, 127),
    "q2_K": codes(0, 3) * 15 / 16,
    "q3_K": codes(-4, 3),
    "q4_K": codes(0, 15) * 63 / 64 - 63 / 8,
    "q5_K": codes(0, 31) * 63 / 64 - 63 / 8,
    "q6_K": codes(-32, 31),
    "mxfp4": np.tile([0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -3, -4, -6, -8, -12, 0], 16) / 4,
    "nvfp4": np.tile([0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -3, -4, -6, -8, -12, 0], 16) / 4,
    "tq1_0": codes(-1, 1),
    "tq2_0": codes(-1, 1) / 2,
}


@pytest.mark.parametrize("name", EXACT)
def test_values_on_the_grid_survive(name: str) -> None:
    x = EXACT[name].astype(np.float32)
    assert decode(name, encode(name, x), x.shape).tolist() == x.tolist()


def test_bf16_rounds_to_nearest_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xFF800000, 0x7F7FFFFF, 0x7F800001])
    raw = encode(BF16, bits.astype(np.uint32).view(np.float32))
    assert [hex(v) for v in raw] == ["0x3f80", "0x3f82", "0x3f81", "0xff80", "0x7f80", "0x7fc0"]
    assert raw.dtype == np.uint16
    every = np.arange(1 << 16, dtype=np.uint16)
    ours = decode("bf16", every, (256, 256)).reshape(-1)
    assert np.array_equal(ours.view(np.uint32), every.astype(np.uint32) << 16)


def test_plain_types_keep_shape_and_special_values() -> None:
    x = np.array([[1.0, -np.inf], [np.nan, 70000.0]], np.float32)
    raw = encode(F16, x)
    assert raw.dtype == np.float16 and raw.shape == x.shape
    back = decode("f16", raw, x.shape)
    assert np.array_equal(back, [[1, -np.inf], [np.nan, np.inf]], equal_nan=True)
    ids = encode(I32, [3, -4])
    assert decode(I32, ids.view(np.uint8), (2,)).tolist() == [3, -4]
    scalar = encode("f32", np.float32(2.5))
    assert scalar.shape == () and decode("f32", scalar, ()) == 2.5


def test_the_kernels_have_the_grids_of_the_gguf_package() -> None:
    for name, text in headers().items():
        assert (DIRECTORY / name).read_text() == text, f"run {make_grids.__file__}"


@pytest.mark.parametrize("c", [c for c in QUANTIZED if not c.writable], ids=by_name)
def test_grids_are_only_read(c: Codec) -> None:
    with pytest.raises(NotImplementedError, match=f"{c.dtype.name}: there is no quantizer"):
        c.quantize(np.zeros((1, 256), np.float32))


# First bytes of what llama.cpp's quantizers (ggml 0.25.3) make of the first row of DATA["normal"],
# and a checksum of all 24 rows.
LLAMA_CPP = {
    "iq4_nl": ("76145acad750d5e9", 0x20C52422),
    "iq4_xs": ("be020fcc3aa897e0", 0x520A08A9),
    "mxfp4": ("7ab14259be5a51cc", 0x02F56A2A),
    "nvfp4": ("0b070709424239cf", 0x575646FC),
    "tq1_0": ("8080802a80808383", 0xCDA6BD04),
    "tq2_0": ("5555555455559595", 0xF029171F),
}


@pytest.mark.parametrize("name", LLAMA_CPP)
def test_bytes_are_llama_cpps(name: str) -> None:
    raw = codec(name).quantize(DATA["normal"])
    start, checksum = LLAMA_CPP[name]
    assert (raw[0, :8].tobytes().hex(), zlib.crc32(raw.tobytes())) == (start, checksum)
