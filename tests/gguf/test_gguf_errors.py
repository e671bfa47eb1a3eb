"""Each way a file can be wrong is a GgufError that says where, in one line."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

import gguf_bytes as b
import pytest

from gguflow.engine.gguf import GgufError, GgufFile

HUGE = (2**60, 2**63, 2**64 - 1)
KV_AT = 24  # where the first key begins


def fails(tmp_path: Path, content: bytes) -> GgufError:
    path = b.write(tmp_path, content)
    start = time.thread_time()
    with pytest.raises(GgufError) as caught:
        GgufFile.open(path)
    assert time.thread_time() - start < 2, "refusing it must not take work"
    e = caught.value
    assert "\n" not in str(e) and str(e).startswith(f"{path}: byte {e.offset}: {e.field}: found ")
    assert str(e.found) in str(e) and str(e.expected) in str(e) and e.path == str(path)
    assert e.offset is not None and e.offset >= 0
    return e


def s(n: int) -> bytes:
    return struct.pack("<Q", n)


def arr_kv(element: int, n: int, body: bytes = b"") -> bytes:
    return b.gguf([b.kv("k", b.ARR, b.arr(element, n, body))])


AFTER_KEY = KV_AT + 8 + 1 + 4  # the value of a key called "k"
COUNT_AT = AFTER_KEY + 4  # the count of an array there

HEADER = [
    ("text", b"hello, this is a text file, not a model\n", 0, "magic"),
    ("short", b"GG", 0, "magic"),
    ("lower case", b.gguf(magic=b"gguf"), 0, "magic"),
    ("ggml", b.gguf(magic=b"lmgg"), 0, "magic"),
    *[(f"version {v}", b.gguf(version=v), 4, "version") for v in (0, 1, 4, 1 << 16, 2**32 - 1)],
    ("big-endian version 1", b.gguf(version=1, order=">"), 4, "version"),
    *[(f"{n} keys", b.gguf(n_kv=n), 16, "number of keys") for n in (1, *HUGE)],
    *[(f"{n} tensors", b.gguf(n_tensors=n), 8, "number of tensors") for n in (1, *HUGE)],
    ("2^17 keys", b.gguf(n_kv=2**17, data=bytes(2**17 * 14)), 16, "number of keys"),
    ("2^21 tensors", b.gguf(n_tensors=2**21, data=bytes(2**21 * 33)), 8, "number of tensors"),
]

KEYS = [
    ("key empty", b.gguf([b.u32("", 1)]), KV_AT, "key 0 of 1 length"),
    ("key too long", b.gguf([b.u32("k" * 65536, 1)]), KV_AT, "key 0 of 1 length"),
    ("key not utf-8", b.gguf([b.u32(b"ab\xff", 1)]), KV_AT + 8 + 2, "key 0 of 1"),
    *[(f"key of {n}", b.gguf([s(n) + bytes(64)]), KV_AT, "key 0 of 1 length") for n in HUGE],
    ("key twice", b.gguf([b.u32("k", 1), b.u32("k", 1)]), KV_AT + 17, "key 1 of 2"),
    ("value type", b.gguf([b.kv("k", 13, bytes(8))]), AFTER_KEY - 4, "key 'k' type"),
    ("value type 2^32-1", b.gguf([b.kv("k", 2**32 - 1, b"")]), AFTER_KEY - 4, "key 'k' type"),
    ("bool of 2", b.gguf([b.kv("k", b.BOOL, b"\2")]), AFTER_KEY, "key 'k'"),
    *[(f"string of {n}", b.gguf([b.kv("k", b.STR, s(n))]), AFTER_KEY, "key 'k' length")
      for n in HUGE],
]  # fmt: skip

ARRAYS = [
    ("element type", arr_kv(13, 0), AFTER_KEY, "key 'k' element type"),
    *[(f"{n} of u8", arr_kv(b.U8, n, bytes(8)), COUNT_AT, "key 'k' count") for n in HUGE],
    *[(f"{n} of f64", arr_kv(b.F64, n, bytes(8)), COUNT_AT, "key 'k' count") for n in HUGE],
    *[(f"{n} strings", arr_kv(b.STR, n, bytes(8)), COUNT_AT, "key 'k' count") for n in HUGE],
    *[(f"{n} arrays", arr_kv(b.ARR, n, bytes(12)), COUNT_AT, "key 'k' count") for n in HUGE],
    ("u64s that wrap", arr_kv(b.U64, 2**61, bytes(8)), COUNT_AT, "key 'k' count"),
    ("bool of 3", arr_kv(b.BOOL, 3, b"\1\0\3"), COUNT_AT + 10, "key 'k' element 2"),
    *[
        (f"second string of {n}", arr_kv(b.STR, 2, b.string("ab") + s(n) + bytes(9)),
         COUNT_AT + 18, "key 'k' element 1 of 2 length") for n in HUGE
    ],
    ("last string past the end", arr_kv(b.STR, 2, b.string("ab") + s(40)), COUNT_AT + 18,
     "key 'k' element 1 of 2 length"),
    ("nested too deep", arr_kv(b.ARR, 1, b.arr(b.ARR, 1) * 5), COUNT_AT + 8 + 3 * 12,
     "key 'k' element 0 of 1 element 0 of 1 element 0 of 1 element 0 of 1"),
    ("arrays of two kinds", arr_kv(b.ARR, 2, b.arr(b.U32, 0) + b.arr(b.STR, 0)), COUNT_AT + 8 + 12,
     "key 'k' element 1 of 2"),
    ("arrays by the million", arr_kv(b.ARR, 2**20, b.arr(b.U8, 0) * 2**20), COUNT_AT,
     "key 'k' count"),
    ("inner element type", arr_kv(b.ARR, 1, b.arr(99, 0)), COUNT_AT + 8,
     "key 'k' element 0 of 1 element type"),
]  # fmt: skip

ALIGN = KV_AT + 8 + len("general.alignment") + 4


def aligned(n: int) -> bytes:
    return b.gguf([b.u32("general.alignment", n)])


ALIGNMENT = [
    *[(f"{n}", aligned(n), ALIGN, "key 'general.alignment'")
      for n in (0, 1, 4, 3, 33, 48, 2**25, 2**31, 2**32 - 1)],
    ("i32", b.gguf([b.kv("general.alignment", b.I32, struct.pack("<i", 32))]), ALIGN,
     "key 'general.alignment'"),
    ("a string", b.gguf([b.kv("general.alignment", b.STR, b.string("32"))]), ALIGN,
     "key 'general.alignment'"),
    ("an array", b.gguf([b.kv("general.alignment", b.ARR, b.arr(b.U32, 1, s(32)[:4]))]), ALIGN,
     "key 'general.alignment'"),
]  # fmt: skip

NE_AT = KV_AT + 8 + 1 + 4  # the first dimension of a tensor called "w"


def one(ne: tuple[int, ...], type_id: int = 0, offset: int = 0, n_data: int = 64) -> bytes:
    return b.gguf(tensors=[b.tensor("w", ne, type_id, offset)], data=bytes(n_data))


TENSORS = [
    ("no name", b.gguf(tensors=[b.tensor("", (1,))]), KV_AT, "tensor 0 of 1 name length"),
    ("long name", b.gguf(tensors=[b.tensor("w" * 65, (1,))]), KV_AT, "tensor 0 of 1 name length"),
    ("name not utf-8", b.gguf(tensors=[b.tensor(b"\x80", (1,))]), KV_AT + 8, "tensor 0 of 1 name"),
    ("name twice", b.gguf(tensors=[b.tensor("w", (1,)), b.tensor("w", (1,), offset=32)],
                          data=bytes(64)), KV_AT + 33, "tensor 1 of 2 name"),
    ("0 dimensions", one(()), NE_AT - 4, "tensor 'w' number of dimensions"),
    ("5 dimensions", one((1,) * 5), NE_AT - 4, "tensor 'w' number of dimensions"),
    ("dimension 0", one((4, 0)), NE_AT + 8, "tensor 'w' dimension 1"),
    ("dimension 2^63", one((2**63,)), NE_AT, "tensor 'w' dimension 0"),
    ("product 2^64", one((2**32, 2**32)), NE_AT + 8, "tensor 'w' dimension 1"),
    ("product wraps to 0", one((2**32, 2**31, 2)), NE_AT + 8, "tensor 'w' dimension 1"),
    ("product wraps to 4", one((2**62 + 1, 4)), NE_AT + 8, "tensor 'w' dimension 1"),
    ("bytes wrap", one((2**62 + 8,)), 64, "tensor 'w' data"),
    ("type 4, removed", one((32,), 4), NE_AT + 8, "tensor 'w' type"),
    ("type 2^31", one((32,), 2**31), NE_AT + 8, "tensor 'w' type"),
    ("half a block", one((48,), b.TYPE_Q8_0), NE_AT + 8, "tensor 'w' row"),
    ("row of 16 in q8_0", one((16, 2), b.TYPE_Q8_0), NE_AT + 16, "tensor 'w' row"),
    ("offset 4", one((4,), offset=4), NE_AT + 12, "tensor 'w' offset"),
    ("offset 64 of 64", one((4,), offset=64), 64 + 64, "tensor 'w' data"),
    ("offset 2^64-32", one((4,), offset=2**64 - 32), 64 + 2**64 - 32, "tensor 'w' data"),
    ("one byte short", one((16,), n_data=63), 64, "tensor 'w' data"),
    ("overlap", b.gguf(tensors=[b.tensor("v", (9,)), b.tensor("w", (9,), offset=32)],
                       data=bytes(128)), 96 + 32, "tensor 'w' data"),
    ("same place", b.gguf(tensors=[b.tensor("v", (2,)), b.tensor("w", (2,))],
                          data=bytes(128)), 96, "tensor 'w' data"),
    ("inside a later one", b.gguf(tensors=[b.tensor("v", (2,), offset=32), b.tensor("w", (16,))],
                                  data=bytes(128)), 96 + 32, "tensor 'v' data"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "offset", "field"),
    [
        pytest.param(content, offset, field, id=f"{group}: {name}")
        for group, cases in [
            ("header", HEADER), ("key", KEYS), ("array", ARRAYS), ("alignment", ALIGNMENT),
            ("tensor", TENSORS),
        ]
        for name, content, offset, field in cases
    ],
)  # fmt: skip
def test_broken_file(tmp_path: Path, content: bytes, offset: int, field: str) -> None:
    e = fails(tmp_path, content)
    assert (e.offset, e.field) == (offset, field)


def test_the_message_names_file_byte_field_found_and_expected(tmp_path: Path) -> None:
    e = fails(tmp_path, b.gguf(n_kv=2**60, data=bytes(28)))
    assert str(e) == (
        f"{tmp_path}/x.gguf: byte 16: number of keys: found {2**60} keys, expected at most 2 in "
        "what is left of the file"
    )


def test_control_characters_do_not_break_the_line(tmp_path: Path) -> None:
    path = b.write(tmp_path, b.gguf([b.kv("a\nb", 99, b"")]), "new\nline.gguf")
    with pytest.raises(GgufError) as caught:
        GgufFile.open(path)
    assert "\n" not in str(caught.value) and r"'a\nb'" in str(caught.value)


def test_a_long_key_is_cut(tmp_path: Path) -> None:
    path = b.write(tmp_path, b.gguf([b.kv("k" * 60000, 99, b"")]))
    with pytest.raises(GgufError) as caught:
        GgufFile.open(path)
    assert len(str(caught.value)) < 500


def test_sparse_terabytes_are_refused_at_once(tmp_path: Path) -> None:
    # Zeros cost their maker nothing: a count that fits such a file must not be walked to its end.
    for n_strings, expected in (2**36, "a header may take"), (2**24 + 1, "at most 4194304"):
        path = b.write(tmp_path, b.gguf([b.kv("k", b.ARR, b.arr(b.STR, n_strings))]))
        try:
            os.truncate(path, 2**40)
        except OSError:
            pytest.skip("no sparse files of this size here")
        start = time.thread_time()
        with pytest.raises(GgufError, match=expected):
            GgufFile.open(path)
        assert time.thread_time() - start < 1


def test_a_string_far_down_a_long_array_is_named(tmp_path: Path) -> None:
    body = b.string("token") * 100_000
    e = fails(tmp_path, arr_kv(b.STR, 100_001, body + s(1000)))
    assert e.field == "key 'k' element 100000 of 100001 length"
    assert e.offset == COUNT_AT + 8 + len(body)
    cut_length = b.kv("k", b.ARR, b.arr(b.STR, 100_001, body + b"\0\0\0"))
    e = fails(tmp_path, b.gguf([cut_length], alignment=1))
    assert e.field == "key 'k' element 100000 of 100001 length"
    assert e.offset == COUNT_AT + 8 + len(body) and e.found == "3 bytes before the end"


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda p: None, "no such file or directory"),
        (lambda p: p.mkdir(), "a directory"),
        (lambda p: p.touch(), "an empty file"),
        (lambda p: os.mkfifo(p), "a pipe"),
        (lambda p: p.symlink_to("/dev/null"), "a device"),
        (lambda p: p.symlink_to(p), "too many levels"),
    ],
    ids=["missing", "directory", "empty", "pipe", "device", "loop"],
)
def test_what_is_no_file(tmp_path: Path, make, found: str) -> None:
    path = tmp_path / "x.gguf"
    make(path)
    with pytest.raises(GgufError, match=f"x.gguf: file: found {found}.*, expected a GGUF file"):
        GgufFile.open(path)


def test_socket_and_impossible_names(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        old = os.getcwd()
        os.chdir(tmp_path)  # socket names are short
        try:
            sock.bind("s")
        finally:
            os.chdir(old)
        for path in (tmp_path / "s", "", "a\0b", tmp_path / ("x" * 5000), tmp_path / "x" / "y"):
            with pytest.raises(GgufError, match="file: found"):
                GgufFile.open(path)


def test_an_unreadable_file(tmp_path: Path) -> None:
    path = b.write(tmp_path, b.gguf())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("permissions do not bind this user")
    with pytest.raises(GgufError, match="permission denied"):
        GgufFile.open(path)


def test_an_error_leaves_no_file_open(tmp_path: Path) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc/self/fd")
    path = b.write(tmp_path, b.gguf(n_kv=5))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(GgufError):
            GgufFile.open(path)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
