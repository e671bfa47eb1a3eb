"""Models split over files: opened by any of them, and every way the set can be wrong."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import gguf_bytes as b
import numpy as np
import pytest
from gguf import GGUFWriter

from gguflow.engine.gguf import GgufError, GgufFile


def name(i: int, n: int = 3) -> str:
    return f"m-{i:05d}-of-{n:05d}.gguf"


@pytest.fixture
def shards(tmp_path: Path) -> dict[str, np.ndarray]:
    """Three shards of two tensors each, by GGUFWriter."""
    w = GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    w.add_uint32("llama.block_count", 4)
    tensors = {f"t{i}": np.full((i + 1, 3), i, np.float32) for i in range(6)}
    for key, x in tensors.items():
        w.add_tensor(key, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return tensors


@pytest.mark.parametrize("given", [1, 2, 3])
def test_any_shard_opens_all(tmp_path: Path, shards: dict[str, np.ndarray], given: int) -> None:
    with GgufFile.open(tmp_path / name(given)) as f:
        paths = [str(tmp_path / name(i)) for i in (1, 2, 3)]
        assert f.shards == paths and f.path == paths[0]
        assert f.n_bytes == sum(Path(p).stat().st_size for p in paths)
        assert f.require("llama.block_count", int) == 4
        assert list(f.tensors) == list(shards)
        for i, (key, x) in enumerate(shards.items()):
            assert np.array_equal(f.array(key), x)
            assert f.tensors[key].path == paths[i // 2]
            f.advise(key, "dontneed")


def test_a_missing_shard_is_named(tmp_path: Path, shards: dict) -> None:
    (tmp_path / name(2)).unlink()
    with pytest.raises(
        GgufError, match=f"{name(2)}: file: found no such file, expected shard 2 of 3"
    ):
        GgufFile.open(tmp_path / name(1))


def test_a_broken_shard_is_named(tmp_path: Path, shards: dict) -> None:
    path = tmp_path / name(3)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(GgufError, match=f"{name(3)}: byte .*truncated"):
        GgufFile.open(tmp_path / name(1))


def test_a_renamed_shard_is_refused(tmp_path: Path, shards: dict) -> None:
    shutil.copy(tmp_path / name(1), tmp_path / "other.gguf")
    with pytest.raises(
        GgufError, match="file name: found 'other.gguf', expected ...-00001-of-00003"
    ):
        GgufFile.open(tmp_path / "other.gguf")
    shutil.copy(tmp_path / name(1), tmp_path / name(1, 2))
    with pytest.raises(GgufError, match="file name"):
        GgufFile.open(tmp_path / name(1, 2))


def test_shards_in_the_wrong_place(tmp_path: Path, shards: dict) -> None:
    shutil.copy(tmp_path / name(3), tmp_path / name(2))
    with pytest.raises(GgufError, match=f"{name(2)}: key 'split.no': found 2, expected 1"):
        GgufFile.open(tmp_path / name(1))


def u16(key: str, n: int) -> bytes:
    return b.kv(key, b.U16, struct.pack("<H", n))


def write_set(directory: Path, total: int, names: tuple[str, str], kvs: tuple = ()) -> Path:
    for i, tensor in enumerate(names):
        keys = [u16("split.count", 2), u16("split.no", i), u16("split.tensors.count", total), *kvs]
        b.write(directory, b.gguf(keys, [b.tensor(tensor, (1,))], bytes(4)), name(i + 1, 2))
    return directory / name(1, 2)


def test_the_count_of_tensors_must_agree(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"'split.tensors.count': found 3, expected 2"):
        GgufFile.open(write_set(tmp_path, 3, ("a", "b")))


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"00002-of-00002.gguf: tensor 'a': found it in .*00001-of"):
        GgufFile.open(write_set(tmp_path, 2, ("a", "a")))


def test_split_keys_of_the_wrong_kind(tmp_path: Path) -> None:
    path = b.write(tmp_path, b.gguf([b.kv("split.count", b.STR, b.string("2"))]), name(1, 2))
    with pytest.raises(GgufError, match="'split.count': found str, expected int"):
        GgufFile.open(path)
    for i in (1, 2):
        b.write(tmp_path, b.gguf([u16("split.count", 2)]), name(i, 2))
    with pytest.raises(GgufError, match="'split.no': found no such key, expected int"):
        GgufFile.open(path)


@pytest.mark.parametrize("count", [0, 65535])
def test_impossible_counts_of_shards(tmp_path: Path, count: int) -> None:
    path = b.write(tmp_path, b.gguf([u16("split.count", count), u16("split.no", 0)]), name(1))
    with pytest.raises(GgufError, match="file name"):
        GgufFile.open(path)


def test_a_name_alone_makes_no_shard(tmp_path: Path) -> None:
    for kvs in ([], [u16("split.count", 1)]):
        path = b.write(tmp_path, b.gguf(kvs), name(2))
        assert GgufFile.open(path).shards == [str(path)]
