"""What the reader gives for valid files, the gguf package's writer as witness."""

from __future__ import annotations

import gc
import itertools
import struct
import time
from pathlib import Path

import gguf_bytes as b
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFEndian, GGUFReader, GGUFValueType, GGUFWriter

from gguflow.engine.gguf import GgufError, GgufFile, StringArray, UnsupportedType


def witness(path: Path, endian: GGUFEndian = GGUFEndian.LITTLE, **options) -> dict[str, np.ndarray]:
    """A file of every scalar kind, several arrays and tensors, by GGUFWriter."""
    w = GGUFWriter(path, "llama", endianess=endian, **options)
    w.add_uint8("k.u8", 255)
    w.add_int8("k.i8", -128)
    w.add_uint16("k.u16", 65535)
    w.add_int16("k.i16", -32768)
    w.add_uint32("k.u32", 2**32 - 1)
    w.add_int32("k.i32", -(2**31))
    w.add_uint64("k.u64", 2**64 - 1)
    w.add_int64("k.i64", -(2**63))
    w.add_float32("k.f32", 0.25)
    w.add_float64("k.f64", 0.1)
    w.add_bool("k.true", True)
    w.add_bool("k.false", False)
    w.add_string("k.str", "zażółć 🦙")
    w.add_array("k.strs", ["a", "", "ż", "x" * 300])
    w.add_array("k.ints", [1, -2, 3])
    w.add_array("k.floats", [0.5, -1.5])
    w.add_array("k.bools", [True, False, True])
    w.add_key_value("k.u16s", [1, 65535], GGUFValueType.ARRAY, GGUFValueType.UINT16)
    rng = np.random.default_rng(0)
    tensors = {
        "a.f32": rng.standard_normal((3, 5), np.float32),
        "b.f16": rng.standard_normal((2, 3, 7)).astype(np.float16),
        "c.i32": rng.integers(-9, 9, (11,)).astype(np.int32),
        "d.f64": rng.standard_normal((2, 2, 2, 2)),
        "e.i8": rng.integers(-9, 9, (1, 6)).astype(np.int8),
    }
    for name, x in tensors.items():
        w.add_tensor(name, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return tensors


EXPECTED = {
    "general.architecture": "llama",
    "k.u8": 255,
    "k.i8": -128,
    "k.u16": 65535,
    "k.i16": -32768,
    "k.u32": 2**32 - 1,
    "k.i32": -(2**31),
    "k.u64": 2**64 - 1,
    "k.i64": -(2**63),
    "k.f32": 0.25,
    "k.f64": 0.1,
    "k.true": True,
    "k.false": False,
    "k.str": "zażółć 🦙",
    "k.strs": ["a", "", "ż", "x" * 300],
    "k.ints": [1, -2, 3],
    "k.floats": [0.5, -1.5],
    "k.bools": [True, False, True],
    "k.u16s": [1, 65535],
}
KINDS = {
    "k.u8": "u8",
    "k.true": "bool",
    "k.str": "str",
    "k.strs": "arr[str]",
    "k.ints": "arr[i32]",
    "k.floats": "arr[f32]",
    "k.bools": "arr[bool]",
    "k.u16s": "arr[u16]",
}


@pytest.mark.parametrize("endian", [GGUFEndian.LITTLE, GGUFEndian.BIG])
def test_everything_the_witness_wrote(tmp_path: Path, endian: GGUFEndian) -> None:
    path = tmp_path / "m.gguf"
    tensors = witness(path, endian)
    with GgufFile.open(path) as f:
        assert (f.magic, f.version, f.alignment) == ("GGUF", 3, 32)
        assert f.big_endian == (endian is GGUFEndian.BIG)
        assert f.n_bytes == path.stat().st_size
        assert f.shards == [str(path)] and f.path == str(path)
        assert list(f.metadata) == list(EXPECTED)
        for key, expected in EXPECTED.items():
            found = f.metadata[key]
            if isinstance(found, (np.ndarray, StringArray)):
                found = found.tolist()
            assert found == expected and type(found) is type(expected), key
        assert {k: f.types[k] for k in KINDS} == KINDS
        assert list(f.tensors) == list(tensors)
        for name, x in tensors.items():
            found = f.array(name)
            assert f.tensors[name].shape == x.shape and f.tensors[name].nbytes == x.nbytes
            assert found.dtype == x.dtype and np.array_equal(found, x), name
            assert f.data(name).tobytes() == x.astype(x.dtype.newbyteorder("<")).tobytes()


def test_the_same_offsets_as_the_packages_reader(shared_data: Path) -> None:
    path = shared_data / "stories260K.gguf"
    witness = {t.name: t for t in GGUFReader(path).tensors}
    with GgufFile.open(path) as f:
        assert list(f.tensors) == list(witness)
        for name, t in f.tensors.items():
            assert t.offset == witness[name].data_offset
            assert t.shape == tuple(int(n) for n in reversed(witness[name].shape))
            assert np.array_equal(f.array(name), witness[name].data)


@pytest.mark.parametrize("vocab", ["llama-spm", pytest.param("gpt-2", marks=pytest.mark.slow)])
def test_vocabularies_as_the_packages_reader_has_them(shared_data: Path, vocab: str) -> None:
    path = shared_data / f"ggml-vocab-{vocab}.gguf"
    fields = {k: v for k, v in GGUFReader(path).fields.items() if not k.startswith("GGUF.")}
    with GgufFile.open(path) as f:
        assert list(f.metadata) == list(fields)
        for key, field in fields.items():
            found, expected = f.metadata[key], field.contents()
            if isinstance(expected, list):
                assert len(found) == len(expected) > 0
                assert list(found) == expected, key
            else:
                assert found == expected, key


def test_a_large_vocabulary_opens_quickly(shared_data: Path) -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        with GgufFile.open(shared_data / "ggml-vocab-llama-bpe.gguf") as f:
            tokens = list(f.metadata["tokenizer.ggml.tokens"])
        times.append(time.perf_counter() - start)
    assert len(tokens) == 128256 and tokens[0] == "!" and tokens[128000] == "<|begin_of_text|>"
    assert len(f.metadata["tokenizer.ggml.merges"]) == 280147
    assert min(times) < 0.3


def test_data_is_a_read_only_view_that_outlives_close(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tensors = witness(path)
    f = GgufFile.open(path)
    x = f.array("a.f32")
    assert not x.flags.writeable and not x.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        f.data("a.f32")[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        f.metadata["k.ints"][0] = 1
    f.close()
    f.close()
    gc.collect()
    assert np.array_equal(x, tensors["a.f32"])
    with pytest.raises(ValueError, match="closed"):
        f.data("a.f32")


def test_advice_leaves_the_data_readable(tmp_path: Path) -> None:
    data = np.arange(1 << 16, dtype=np.float32)
    path = b.write(
        tmp_path,
        b.gguf(
            tensors=[b.tensor("small", (8,)), b.tensor("w", (1 << 16,), offset=32)],
            data=bytes(32) + data.tobytes(),
        ),
    )
    with GgufFile.open(path) as f:
        for advice in ("willneed", "dontneed", "dontneed", "willneed"):
            for name in f.tensors:
                f.advise(name, advice)
            assert np.array_equal(f.array("w"), data)
        with pytest.raises(ValueError, match="'sometimes'"):
            f.advise("w", "sometimes")


def test_dontneed_shrinks_resident_memory(tmp_path: Path) -> None:
    status = Path("/proc/self/smaps")
    if not status.is_file():
        pytest.skip("needs /proc/self/smaps")
    n = 1 << 22
    path = b.write(tmp_path, b.gguf(tensors=[b.tensor("w", (n,))], data=bytes(4 * n)))

    def resident() -> int:
        lines = iter(status.read_text().splitlines())
        mapping = itertools.dropwhile(lambda s: not s.endswith(str(path)), lines)
        return next(int(s.split()[1]) for s in mapping if s.startswith("Rss:"))

    with GgufFile.open(path) as f:
        f.data("w").sum()
        before = resident()
        f.advise("w", "dontneed")
        assert before > 16000 and resident() < 100  # kB


def test_string_array_is_a_sequence(tmp_path: Path) -> None:
    words = ["ab", "", "ż", "x" * 1000]
    path = b.write(tmp_path, b.gguf([
        b.kv("s", b.ARR, b.arr(b.STR, 4, b"".join(map(b.string, words)))),
        b.kv("none", b.ARR, b.arr(b.STR, 0)),
    ]))  # fmt: skip
    f = GgufFile.open(path)
    s = f.metadata["s"]
    f.close()
    assert s == words and s == tuple(words) and s != words[:3] and s != "ab" and s == s[:]
    assert list(s) == words and s.tolist() == words and len(s) == 4
    assert (s[0], s[-1], s[1:3], s.raw(2)) == ("ab", words[-1], ["", "ż"], "ż".encode())
    assert "ż" in s and s.index("ab") == 0
    assert list(reversed(s)) == words[::-1]
    for i in (4, -5):
        with pytest.raises(IndexError):
            s[i]
    assert f.metadata["none"] == [] and len(f.metadata["none"]) == 0
    assert f.metadata["none"] != s


def test_token_bytes_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    path = b.write(tmp_path, b.gguf([
        b.kv("s", b.ARR, b.arr(b.STR, 2, b.string(b"\xff\xc5") + b.string(b"\x00a"))),
        b.kv("t", b.STR, b.string(b"a\xe2\x82")),
    ]))  # fmt: skip
    f = GgufFile.open(path)
    s = f.metadata["s"]
    assert s.raw(0) == b"\xff\xc5" == s[0].encode("utf-8", "surrogateescape")
    assert s[1] == "\0a"
    assert f.metadata["t"].encode("utf-8", "surrogateescape") == b"a\xe2\x82"


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("n_bytes", [0, 1, 7, 8, 255, 256, 257, 70000])
def test_strings_of_every_length_among_short_ones(tmp_path: Path, order: str, n_bytes: int) -> None:
    # Runs of short strings are found together, others one by one: both, and from one to the other.
    words = [b"w%d" % i for i in range(3000)]
    words[1500:1500] = [b"\0" * n_bytes, b"x" * n_bytes, b"\0" * n_bytes]
    body = b"".join(b.string(w, order) for w in words)
    after = b.u32("after", 7, order)
    path = b.write(tmp_path, b.gguf(
        [b.kv("s", b.ARR, b.arr(b.STR, len(words), body, order), order), after], order=order
    ))  # fmt: skip
    f = GgufFile.open(path)
    assert [w.encode() for w in f.metadata["s"]] == words
    assert f.metadata["after"] == 7


def test_nested_arrays(tmp_path: Path) -> None:
    inner = b.arr(b.U32, 2, struct.pack("<2I", 1, 2)) + b.arr(b.U32, 0)
    strings = b.arr(b.STR, 1, b.string("x"))
    path = b.write(tmp_path, b.gguf([
        b.kv("a", b.ARR, b.arr(b.ARR, 2, inner)),
        b.kv("b", b.ARR, b.arr(b.ARR, 0)),
        b.kv("c", b.ARR, b.arr(b.ARR, 2, b.arr(b.ARR, 0) + b.arr(b.ARR, 1, strings))),
    ]))  # fmt: skip
    f = GgufFile.open(path)
    assert [x.tolist() for x in f.metadata["a"]] == [[1, 2], []]
    assert f.metadata["b"] == [] and f.metadata["c"] == [[], [["x"]]]
    assert dict(f.types) == {"a": "arr[arr[u32]]", "b": "arr[arr]", "c": "arr[arr[arr[str]]]"}


@pytest.mark.parametrize(("magic", "version"), [(b"GGUF", 2), (b"GGUF", 3), (b"PWRI", 3)])
def test_versions_and_magics(tmp_path: Path, magic: bytes, version: int) -> None:
    content = b.gguf([b.u32("a", 1)], [b.tensor("w", (2,))], struct.pack("<2f", 1, 2),
                     magic=magic, version=version)  # fmt: skip
    f = GgufFile.open(b.write(tmp_path, content))
    assert (f.magic, f.version) == (magic.decode(), version)
    assert f.array("w").tolist() == [1, 2]


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment_key(tmp_path: Path, alignment: int) -> None:
    offset = -(-8 // alignment) * alignment
    path = b.write(tmp_path, b.gguf(
        [b.u32("general.alignment", alignment)],
        [b.tensor("v", (1,), offset=offset), b.tensor("w", (2,))],
        struct.pack("<2f", 1, 2).ljust(offset, b"\0") + struct.pack("<f", 3),
        alignment=alignment,
    ))  # fmt: skip
    f = GgufFile.open(path)
    assert f.alignment == alignment and list(f.tensors) == ["v", "w"]
    assert f.array("w").tolist() == [1, 2] and f.array("v").tolist() == [3]


def test_quantized_and_unregistered_types(tmp_path: Path) -> None:
    q8_k = GGMLQuantizationType.Q8_K
    path = b.write(tmp_path, b.gguf(
        tensors=[b.tensor("q", (64, 2), b.TYPE_Q8_0), b.tensor("m", (256,), int(q8_k), 160)],
        data=bytes(160) + bytes(292),
    ))  # fmt: skip
    f = GgufFile.open(path)
    q, m = f.tensors["q"], f.tensors["m"]
    assert q.shape == (2, 64) and q.nbytes == 2 * 2 * 34 and q.dtype.name == "q8_0"
    assert m.dtype == UnsupportedType("q8_K", int(q8_k), 256, 292) and m.nbytes == 292
    assert f.data("m").size == 292
    for name in ("q", "m"):
        with pytest.raises(GgufError, match="plain type"):
            f.array(name)
    assert UnsupportedType("q8_K", 15, 256, 292).is_quantized


def test_quantized_big_endian_data_is_refused(tmp_path: Path) -> None:
    path = b.write(tmp_path, b.gguf(
        tensors=[b.tensor("q", (32,), b.TYPE_Q8_0, order=">")], data=bytes(34), order=">"
    ))  # fmt: skip
    f = GgufFile.open(path)
    assert f.tensors["q"].shape == (32,)
    with pytest.raises(GgufError, match=r"'q' type: found q8_0 in big-endian order"):
        f.data("q")


def test_require_checks_presence_and_kind(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    witness(path)
    f = GgufFile.open(path)
    assert (
        f.require("k.u16", int) == f.require("k.u16", "u16") == f.require("k.u16", "int") == 65535
    )
    assert f.require("k.f64", float) == 0.1 and f.require("k.true", bool) is True
    assert f.require("k.strs", "arr[str]") is f.require("k.strs", list)
    assert f.require("k.ints", "arr[int]").tolist() == [1, -2, 3]
    assert f.get("nope") is None and f.get("nope", 5, int) == 5 and f.get("k.u8", 0, int) == 255
    for key, kind, found in [
        ("nope", int, "no such key"), ("k.true", int, "bool"), ("k.u32", float, "u32"),
        ("k.u32", "i32", "u32"), ("k.u32", bool, "u32"), ("k.str", list, "str"),
        ("k.strs", str, r"arr\[str\]"), ("k.strs", "arr[int]", r"arr\[str\]"),
        ("k.floats", "arr[int]", r"arr\[f32\]"),
    ]:  # fmt: skip
        with pytest.raises(GgufError, match=f"m.gguf: key '{key}': found {found}, expected"):
            f.require(key, kind)
    with pytest.raises(GgufError, match="found u8"):
        f.get("k.u8", "x", str)
    with pytest.raises(TypeError):
        f.require("k.u8", dict)
    with pytest.raises(GgufError, match="tensor 'nope': found no such tensor"):
        f.data("nope")
