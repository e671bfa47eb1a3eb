"""What the writer writes, with the gguf package's reader as witness, and what it refuses."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import gguf_bytes as b
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType

from gguflow.engine.gguf import GgufError, GgufFile, Typed, UnsupportedType, write_gguf
from gguflow.engine.graph import BF16, F16, F32, I32, dtype_by_name

METADATA = {
    "general.architecture": "llama",
    "a.u32": 7,
    "a.i32": -7,
    "a.u64": 2**40,
    "a.i64": -(2**40),
    "a.f32": 0.5,
    "a.bool": True,
    "a.strs": ["x", "", "ż"],
    "a.ints": [3, -1],
    "a.i64s": [3, 2**40],
    "a.floats": [0.5],
    "a.bools": (True, False),
    "a.numpy": np.arange(3, dtype=np.uint16),
    "a.scalar": np.float64(0.1),
    "a.typed": Typed("u8", 200),
    "a.typeds": Typed("arr[i8]", [-1, 5]),
    "a.f32s": Typed("arr[f32]", [1, 2.5]),
}
KINDS = ["str", "u32", "i32", "u64", "i64", "f32", "bool", "arr[str]", "arr[i32]", "arr[i64]",
         "arr[f32]", "arr[bool]", "arr[u16]", "f64", "u8", "arr[i8]", "arr[f32]"]  # fmt: skip


def plain(value: object) -> object:
    value = value.value if isinstance(value, Typed) else value
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def test_metadata_and_tensors_as_the_witness_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 5), np.float32)
    h = rng.standard_normal((2, 3, 4)).astype(np.float16)
    q = rng.integers(0, 256, (4, 2 * 34), np.uint8)
    write_gguf(path, METADATA, {
        "x": (F32, (3, 5), x), "h": (F16, (2, 3, 4), h), "q": (dtype_by_name("q8_0"), (4, 64), q),
        "i": (I32, (3,), struct.pack("<3i", 1, -2, 3)),
    })  # fmt: skip
    r = GGUFReader(path)
    fields = {k: v for k, v in r.fields.items() if not k.startswith("GGUF.")}
    assert list(fields) == list(METADATA)
    for key, value in METADATA.items():
        assert fields[key].contents() == plain(value), key
    assert fields["a.u32"].types == [GGUFValueType.UINT32]
    assert fields["a.typeds"].types == [GGUFValueType.ARRAY, GGUFValueType.INT8]
    t = {t.name: t for t in r.tensors}
    assert list(t) == ["x", "h", "q", "i"]
    assert np.array_equal(t["x"].data, x) and np.array_equal(t["h"].data, h)
    assert np.array_equal(t["q"].data, q) and t["q"].tensor_type == GGMLQuantizationType.Q8_0
    assert t["q"].shape.tolist() == [64, 4] and t["i"].data.tolist() == [1, -2, 3]

    with GgufFile.open(path) as f:
        assert list(f.types.values()) == KINDS
        assert np.array_equal(f.array("h"), h)


def test_what_the_package_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    metadata = {
        "empty": "",
        "none": Typed("arr[str]", []),
        "no numbers": Typed("arr[u64]", []),
        "nested": Typed("arr[arr[u16]]", [[1, 2], [], [3]]),
        "no arrays": Typed("arr[arr]", []),
        "deep": Typed("arr[arr[arr[str]]]", [[["a"], []], []]),
        "bytes": b"\xff\xfe",
        "tokens": ["\udcff", "ok"],
        "u64": Typed("arr[u64]", [1, 2**64 - 1]),
        "nan": float("nan"),
    }
    write_gguf(path, metadata)
    f = GgufFile.open(path)
    assert not f.tensors
    assert f.metadata["empty"] == "" and f.metadata["none"] == []
    assert f.metadata["no numbers"].dtype == np.uint64 and f.metadata["no numbers"].size == 0
    assert [x.tolist() for x in f.metadata["nested"]] == [[1, 2], [], [3]]
    assert f.metadata["no arrays"] == [] and f.metadata["deep"] == [[["a"], []], []]
    assert f.metadata["bytes"] == "\udcff\udcfe" and f.metadata["tokens"].raw(0) == b"\xff"
    assert f.metadata["u64"].tolist() == [1, 2**64 - 1] and np.isnan(f.metadata["nan"])
    assert f.types["deep"] == "arr[arr[arr[str]]]" and f.types["nested"] == "arr[arr[u16]]"
    again = tmp_path / "again.gguf"
    write_gguf(again, f.typed_metadata())
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "name", ["stories260K.gguf", "ggml-vocab-llama-spm.gguf", "ggml-vocab-llama-bpe.gguf"]
)
def test_a_copy_is_the_same_file(shared_data: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "copy.gguf"
    with GgufFile.open(shared_data / name) as f:
        tensors = {n: (t.dtype, t.shape, f.data(n)) for n, t in f.tensors.items()}
        write_gguf(path, f.typed_metadata(), tensors)
    assert path.read_bytes() == (shared_data / name).read_bytes()


def test_big_endian_is_copied_to_little(tmp_path: Path) -> None:
    content = {
        order: b.gguf(
            [
                b.u32("k", 9, order),
                b.kv("a", b.ARR, b.arr(b.I16, 1, struct.pack(order + "h", -3), order), order),
            ],
            [b.tensor("w", (2,), order=order)],
            struct.pack(order + "2f", 1, 2).ljust(32, b"\0"),
            order=order,
        )
        for order in "<>"
    }
    f = GgufFile.open(b.write(tmp_path, content[">"]))
    out = tmp_path / "out.gguf"
    write_gguf(out, f.typed_metadata(), {"w": (F32, (2,), f.data("w"))})
    assert out.read_bytes() == content["<"]


def test_streamed_sources(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    log: list[str] = []

    def tensors():
        yield "rows", (F32, (4, 6), (row for row in x))
        yield "late", (F32, (4, 6), lambda: log.append("late") or x)
        yield "late rows", (F32, (4, 6), lambda: iter(x.reshape(2, 12)))
        yield "columns", (F32, (6, 4), x.T)  # not contiguous
        yield "buffers", (F32, (4, 6), [bytearray(x[:2].tobytes()), memoryview(x[2:])])
        yield "bf16", (BF16, (4,), np.arange(4, dtype=np.uint16))

    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int, name: str) -> None:
        log.append(name)
        seen.append((done, total))

    path = tmp_path / "m.gguf"
    write_gguf(path, {}, tensors(), progress=progress)
    # A function is called when its turn comes, and progress is told for each piece.
    assert log == [*["rows"] * 4, "late", "late", *["late rows"] * 2, "columns", *["buffers"] * 2,
                   "bf16"]  # fmt: skip
    total = 5 * 96 + 8
    assert seen[-1] == (total, total) and {t for _, t in seen} == {total}
    assert [d for d, _ in seen] == sorted({d for d, _ in seen})
    with GgufFile.open(path) as f:
        for name in ("rows", "late", "late rows", "buffers"):
            assert np.array_equal(f.array(name), x), name
        assert np.array_equal(f.array("columns"), x.T)
        assert f.array("bf16").tolist() == [0, 1, 2, 3]


def test_a_large_tensor_is_written_in_pieces(tmp_path: Path) -> None:
    n = 40 << 20
    seen: list[int] = []
    write_gguf(tmp_path / "m.gguf", {}, {"w": (F32, (n // 4,), np.ones(n, np.uint8))},
               progress=lambda done, *_: seen.append(done))  # fmt: skip
    assert len(seen) == 3 and seen[-1] == n
    with GgufFile.open(tmp_path / "m.gguf") as f:
        assert (f.data("w") == 1).all()


def test_numpy_integers_do_as_shape(tmp_path: Path) -> None:
    x = np.zeros((2, 3), np.float32)
    write_gguf(tmp_path / "m.gguf", {}, {"x": (F32, tuple(np.array(x.shape, np.int32)), x)})
    with GgufFile.open(os.fsencode(tmp_path / "m.gguf")) as f:
        assert f.tensors["x"].shape == (2, 3)


def test_unregistered_types_can_be_copied(tmp_path: Path) -> None:
    mxfp4 = UnsupportedType("mxfp4", int(GGMLQuantizationType.MXFP4), 32, 17)
    write_gguf(tmp_path / "m.gguf", {}, {"w": (mxfp4, (2, 32), bytes(range(34)))})
    with GgufFile.open(tmp_path / "m.gguf") as f:
        assert f.tensors["w"].dtype.name == "mxfp4" and f.tensors["w"].shape == (2, 32)
        assert f.data("w").tobytes() == bytes(range(34))


@pytest.mark.parametrize(
    ("metadata", "asked", "expected"),
    [({}, None, 32), ({}, 64, 64), ({"general.alignment": 128}, None, 128),
     ({"general.alignment": Typed("u32", 32)}, None, 32), ({"general.alignment": 64}, 64, 64)],
)  # fmt: skip
def test_alignment(tmp_path: Path, metadata: dict, asked: int | None, expected: int) -> None:
    path = tmp_path / "m.gguf"
    w = np.ones(3, np.float32)
    write_gguf(path, metadata, {"a": (F32, (3,), w), "b": (F32, (3,), w)}, alignment=asked)
    with GgufFile.open(path) as f:
        assert f.alignment == expected == f.tensors["b"].offset - f.tensors["a"].offset
        assert ("general.alignment" in f.metadata) == (expected != 32 or bool(metadata))
        assert f.types.get("general.alignment", "u32") == "u32"
    assert GGUFReader(path).alignment == expected


BAD_VALUES = [
    (Typed("u32", -1), "-1"), (Typed("u8", 256), "256"), (Typed("i64", 2**63), f"{2**63}"),
    (2**64, "18446744073709551616"), (Typed("u32", 1.5), "1.5"), (Typed("f32", 1e39), "1e[+]39"),
    (1e39, "1e[+]39"), (Typed("bool", 1), "1"), (Typed("str", 5), "5"), (Typed("u32", "5"), "'5'"),
    ([], "an empty list"), ([1, "a"], "a list of"), ([1, 0.5], "a list of f32 and u32"),
    ([True, 1], "a list of bool and u32"),
    (None, "NoneType"), ({}, "dict"), (Typed("u33", 1), "no such kind 'u33'"),
    (Typed("arr[", []), "no such kind"), (Typed("arr", [1]), "element type is missing"),
    (Typed("arr[u8]", 5), "5"), (Typed("arr[u8]", "ab"), "'ab'"),
    (Typed("arr[u8]", [1, 300]), "300"), (Typed("arr[u8]", {1, 2}), "1, 2"),
    (np.arange(3) + 1j, "complex"), (np.zeros((2, 2), np.float32), "2, 2"),
    (Typed("arr[u8]", np.array([1, 300])), "numbers from 1 to 300"),
    (Typed("arr[f32]", np.array([1e300])), "too large"),
    (Typed("arr[i32]", np.zeros(2)), "float64"),
    ("\ud800", "surrogates not allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "found"), BAD_VALUES, ids=[repr(v) for v, _ in BAD_VALUES])
def test_values_that_do_not_fit(tmp_path: Path, value: object, found: str) -> None:
    with pytest.raises(GgufError, match=f"m.gguf: key 'k': found .*{found}") as caught:
        write_gguf(tmp_path / "m.gguf", {"k": value})
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


W = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([("w", (F32, (5,), W))], "tensor 'w' data: found 16 bytes, expected 20 bytes of f32"),
        ([("w", (F32, (3,), W))], "found 16 bytes or more, expected 12"),
        ([("w", (F32, (4,), [W, W]))], "found 32 bytes or more, expected 16"),
        ([("w", (F32, (4,), []))], "found 0 bytes"),
        ([("w", (F32, (4,), W.astype(np.int32)))], "an array of int32"),
        ([("w", (F32, (4,), W.astype(">f4")))], "an array of >f4"),
        ([("w", (F32, (2, 2), W.reshape(1, 4)))], "float32.1, 4., expected f32.2, 2."),
        ([("w", (dtype_by_name("q8_0"), (32,), W))], "an array of float32"),
        ([("w", (F32, (), b"1234"))], "'w' shape: found ..,"),
        ([("w", (F32, (1,) * 5, b"1234"))], "1 to 4 dimensions"),
        ([("w", (F32, (0,), b""))], "'w' shape: found .0."),
        ([("w", (dtype_by_name("q8_0"), (48,), b""))], "a multiple of q8_0's block of 32"),
        ([("", (F32, (4,), W))], "name: found 0 bytes"),
        ([("w" * 65, (F32, (4,), W))], "name: found 65 bytes"),
        ([("\udcff", (F32, (4,), W))], "UTF-8"),
        ([("w", (F32, (4,), W)), ("w", (F32, (4,), W))], "'w': found it again"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, tensors: list, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"precious")
    with pytest.raises(GgufError, match=message):
        write_gguf(path, {}, tensors)
    assert path.read_bytes() == b"precious" and os.listdir(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize("alignment", [0, 4, 33, 2**30, 32.0])
def test_bad_alignments(tmp_path: Path, alignment: int) -> None:
    with pytest.raises(GgufError, match="alignment: found"):
        write_gguf(tmp_path / "m.gguf", {}, alignment=alignment)
    with pytest.raises(GgufError, match="expected 64 as key"):
        write_gguf(tmp_path / "m.gguf", {"general.alignment": 64}, alignment=128)


@pytest.mark.parametrize("key", ["", "k" * 65536, "\ud800"])
def test_bad_keys(tmp_path: Path, key: str) -> None:
    with pytest.raises(GgufError, match="m.gguf: key "):
        write_gguf(tmp_path / "m.gguf", {key: 1})


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="none/m.gguf: file: found No such file or directory"):
        write_gguf(tmp_path / "none" / "m.gguf", {})
    with pytest.raises(GgufError, match="found a directory"):
        write_gguf(tmp_path, {})
    with pytest.raises(GgufError, match="found a device"):
        write_gguf("/dev/null", {})


def test_a_source_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken():
        yield W[:2]
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_gguf(tmp_path / "m.gguf", {}, {"w": (F32, (4,), broken())})
    assert os.listdir(tmp_path) == []


def test_a_file_can_be_written_over_while_open(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"k": 1}, {"w": (F32, (4,), W)})
    with GgufFile.open(path) as f:
        write_gguf(path, {"k": 2}, {"w": (F32, (4,), f.data("w"))})
        assert f.metadata["k"] == 1 and np.array_equal(f.array("w"), W)
    assert GgufFile.open(path).metadata["k"] == 2


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to("m.gguf")
    write_gguf(tmp_path / "link.gguf", {"k": 1})
    assert (tmp_path / "link.gguf").is_symlink() and (tmp_path / "m.gguf").is_file()
