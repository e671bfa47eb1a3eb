"""Damaged files: whatever was cut, flipped or spliced, GgufError or a sound file, nothing else."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf_bytes as b
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguflow.engine.gguf import GgufError, GgufFile
from gguflow.engine.gguf.strings import StringArray


def sample(order: str = "<") -> bytes:
    """A small file with every construct; the last tensor ends with the file."""
    kvs = [
        b.kv("general.architecture", b.STR, b.string("llama", order), order),
        b.u32("general.alignment", 32, order),
        b.kv("i8", b.I8, b"\xff", order),
        b.kv("yes", b.BOOL, b"\1", order),
        b.kv("f64", b.F64, struct.pack(order + "d", 0.1), order),
        b.kv("tokens", b.ARR, b.arr(
            b.STR, 5, b"".join(b.string(w, order) for w in ("<s>", "", "ż", "x" * 40, "y")), order
        ), order),
        b.kv("scores", b.ARR, b.arr(b.F32, 3, struct.pack(order + "3f", 1, 2, 3), order), order),
        b.kv("bools", b.ARR, b.arr(b.BOOL, 2, b"\1\0", order), order),
        b.kv("nested", b.ARR, b.arr(
            b.ARR, 2, b.arr(b.U8, 2, b"\1\2", order) + b.arr(b.U8, 0, b"", order), order
        ), order),
    ]  # fmt: skip
    tensors = [
        b.tensor("blk.0.w", (32, 2), b.TYPE_Q8_0, 0, order),
        b.tensor("norm", (5,), b.TYPE_F32, 96, order),
        b.tensor("h", (3, 4), b.TYPE_F16, 128, order),
    ]
    return b.gguf(kvs, tensors, bytes(range(152)), order=order)


def check(path: Path) -> None:
    """Open and look at everything there is."""
    with GgufFile.open(path) as f:
        size = path.stat().st_size
        for value in f.metadata.values():
            if isinstance(value, StringArray):
                assert len(value.tolist()) == len(value)
        assert f.types.keys() == f.metadata.keys()
        for name, t in f.tensors.items():
            assert 0 < t.offset <= t.offset + t.nbytes <= size
            assert t.offset % f.alignment == 0
            if not (f.big_endian and t.dtype.is_quantized):
                assert f.data(name).size == t.nbytes
                f.data(name).sum()


@pytest.mark.parametrize("order", ["<", ">"])
def test_cut_at_every_byte(tmp_path: Path, order: str) -> None:
    content = sample(order)
    check(b.write(tmp_path, content))
    for n in range(len(content)):
        path = b.write(tmp_path, content[:n])
        with pytest.raises(GgufError) as caught:
            check(path)
        assert "\n" not in str(caught.value)


def test_a_real_model_cut_short(shared_data: Path, tmp_path: Path) -> None:
    content = (shared_data / "stories260K.gguf").read_bytes()
    with GgufFile.open(shared_data / "stories260K.gguf") as f:
        end = max(t.offset + t.nbytes for t in f.tensors.values())
        start = min(t.offset for t in f.tensors.values())
    cuts = np.random.default_rng(0).integers(0, end, 60)
    for n in [*range(0, 64), *map(int, cuts), start - 1, start, end - 1]:
        with pytest.raises(GgufError):
            GgufFile.open(b.write(tmp_path, content[:n]))
    check(b.write(tmp_path, content[:end]))


@pytest.mark.parametrize("order", ["<", ">"])
def test_every_byte_replaced(tmp_path: Path, order: str) -> None:
    content = sample(order)
    path = b.write(tmp_path, content)
    refused = 0
    with path.open("r+b", buffering=0) as file:
        for i in range(len(content) - 152):
            for byte in (0x00, 0x01, 0x7F, 0x80, 0xFF, content[i]):
                file.seek(i)
                file.write(bytes([byte]))
                try:
                    check(path)
                except GgufError:
                    refused += 1
    check(path)
    assert refused > 500


INTERESTING = [0, 1, 4, 5, 8, 9, 13, 2**16, 2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**63, 2**64 - 1]
edit = st.one_of(
    st.tuples(st.just("u32"), st.integers(0, 700), st.sampled_from(INTERESTING)),
    st.tuples(st.just("u64"), st.integers(0, 700), st.sampled_from(INTERESTING)),
    st.tuples(st.just("byte"), st.integers(0, 700), st.integers(0, 255)),
    st.tuples(st.just("delete"), st.integers(0, 700), st.integers(1, 40)),
    st.tuples(st.just("insert"), st.integers(0, 700), st.binary(min_size=1, max_size=40)),
    st.tuples(st.just("repeat"), st.integers(0, 700), st.integers(1, 100)),
)


def apply(content: bytes, kind: str, at: int, arg: int | bytes) -> bytes:
    at %= max(len(content), 1)
    if kind == "insert":
        assert isinstance(arg, bytes)
        return content[:at] + arg + content[at:]
    assert isinstance(arg, int)
    if kind == "delete":
        return content[:at] + content[at + arg :]
    if kind == "repeat":
        return content[: at + arg] + content[at:]
    new = {
        "u32": (arg & 0xFFFFFFFF).to_bytes(4, "little"),
        "u64": arg.to_bytes(8, "little"),
        "byte": bytes([arg & 255]),
    }[kind]
    return content[:at] + new + content[at + len(new) :]


@settings(
    max_examples=400, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(edits=st.lists(edit, min_size=1, max_size=4), big=st.booleans())
def test_edited_files(tmp_path: Path, edits: list, big: bool) -> None:
    content = sample(">" if big else "<")
    for kind, at, arg in edits:
        content = apply(content, kind, at, arg)
    try:
        check(b.write(tmp_path, content))
    except GgufError as e:
        assert "\n" not in str(e)


@settings(
    max_examples=200, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(body=st.binary(max_size=300), head=st.sampled_from([b"", b"GGUF\3\0\0\0", sample()[:24]]))
def test_noise(tmp_path: Path, body: bytes, head: bytes) -> None:
    try:
        check(b.write(tmp_path, head + body))
    except GgufError as e:
        assert "\n" not in str(e)


@settings(
    max_examples=200, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    words=st.lists(st.one_of(
        st.binary(max_size=12), st.sampled_from([b"", bytes(9), b"\1" + bytes(7), b"x" * 256])
    ), max_size=60),
    repeat=st.sampled_from([1, 3, 40]),
    cut=st.integers(0, 30),
)  # fmt: skip
def test_strings_that_look_like_prefixes(
    tmp_path: Path, words: list[bytes], repeat: int, cut: int
) -> None:
    words = words * repeat
    content = b.gguf([b.kv("s", b.ARR, b.arr(b.STR, len(words), b"".join(map(b.string, words))))],
                     alignment=1)  # fmt: skip
    path = b.write(tmp_path, content[: len(content) - cut])
    if cut:
        with pytest.raises(GgufError):
            GgufFile.open(path)
    else:
        found = GgufFile.open(path).metadata["s"]
        assert [found.raw(i) for i in range(len(found))] == words
