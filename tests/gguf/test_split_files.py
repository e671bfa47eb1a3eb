"""Split files: PowerInfer's bytes read unchanged, our own written in the same layout."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import gguf_bytes as b
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguflow.engine.gguf import GgufError
from gguflow.engine.variants.relu.split import NeuronSplit, open_split, read_split, write_split

I32 = 26
N_FF = 11
BUCKETS = ([0, 3, 10], [], list(range(N_FF)))


def flags(ids: list[int]) -> list[int]:
    return [int(j in ids) for j in range(N_FF)]


def power_infer(
    buckets: tuple[list[int], ...] = BUCKETS,
    rows: dict[str, list[int]] | None = None,
    arch: str = "generic.gpu_index",
    n_layer: int | None = None,
) -> bytes:
    """A `.generated.gpuidx` file byte by byte. rows: tensors in place of the usual ones."""
    tensors: dict[str, list[int]] = {}
    for i, ids in enumerate(buckets):
        tensors[f"blk.{i}.gpu_idx"] = flags(ids)
        tensors[f"blk.{i}.gpu_bucket"] = ids
    tensors |= rows or {}
    infos, data = [], b""
    for name, values in tensors.items():
        infos.append(b.tensor(name, (len(values),), I32, len(data)))
        data += struct.pack(f"<{len(values)}i", *values)
        data += bytes(-len(data) % 32)
    kvs = [
        b.kv("general.architecture", b.STR, b.string(arch)),
        b.u32("generic.gpu_index.block_count", len(buckets) if n_layer is None else n_layer),
        b.kv("split.vram_capacity", b.U64, struct.pack("<Q", 3 << 30)),
    ]
    return b.gguf(kvs, infos, data, magic=b"PWRI")


def test_power_infers_file_is_read_as_it_is(tmp_path: Path) -> None:
    stored = open_split(b.write(tmp_path, power_infer()))
    assert [list(x) for x in stored.split.buckets] == [list(x) for x in BUCKETS]
    assert stored.split.n_gpu == (3, 0, N_FF)
    assert list(stored.split.gpu_idx(0)) == flags(BUCKETS[0])
    assert (stored.vram_bytes, stored.model_hash) == (3 << 30, None)


def test_the_flags_alone_are_enough(tmp_path: Path) -> None:
    content = power_infer(([2, 5],), n_layer=1)
    (info,) = [b.tensor("blk.0.gpu_idx", (N_FF,), I32)]
    bare = b.gguf(
        [
            b.kv("general.architecture", b.STR, b.string("generic.gpu_index")),
            b.u32("generic.gpu_index.block_count", 1),
        ],
        [info],
        struct.pack(f"<{N_FF}i", *flags([2, 5])),
        magic=b"PWRI",
    )
    with_bucket = read_split(b.write(tmp_path, content, "a"))
    assert read_split(b.write(tmp_path, bare, "b")) == with_bucket


def test_a_file_of_the_gguf_package_with_the_magic_patched(tmp_path: Path) -> None:
    path = tmp_path / "m.generated.gpuidx"
    w = gguf.GGUFWriter(path, "generic.gpu_index")
    for i, ids in enumerate(BUCKETS):
        w.add_tensor(f"blk.{i}.gpu_idx", np.array(flags(ids), np.int32))
        if ids:
            w.add_tensor(f"blk.{i}.gpu_bucket", np.array(ids, np.int32))
    w.add_block_count(len(BUCKETS))
    w.add_uint64("split.vram_capacity", 123)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    raw = path.read_bytes()
    path.write_bytes(b"PWRI" + raw[4:])
    stored = open_split(path)
    assert [list(x) for x in stored.split.buckets] == [list(x) for x in BUCKETS]
    assert stored.vram_bytes == 123


@given(st.lists(st.sets(st.integers(0, N_FF - 1)), min_size=1, max_size=5))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, layers: list[set[int]]
) -> None:
    split = NeuronSplit(N_FF, tuple(np.array(sorted(ids), np.int32) for ids in layers))
    path = tmp_path_factory.mktemp("split") / "s.gpuidx"
    write_split(path, split, "f00d", 1 << 40)
    stored = open_split(path)
    assert (stored.split, stored.vram_bytes, stored.model_hash) == (split, 1 << 40, "f00d")
    assert read_split(path, len(layers), N_FF, "f00d") == split


def test_an_outside_reader_sees_power_infers_layout(tmp_path: Path) -> None:
    path = tmp_path / "s.gpuidx"
    split = NeuronSplit(N_FF, tuple(np.array(ids, np.int32) for ids in BUCKETS))
    write_split(path, split, "f00d", 7)
    r = gguf.GGUFReader(path)
    assert path.read_bytes()[:4] == b"GGUF"
    assert r.fields["generic.gpu_index.block_count"].contents() == 3
    assert r.fields["split.vram_capacity"].contents() == 7
    found = {t.name: list(t.data) for t in r.tensors}
    assert found["blk.0.gpu_bucket"] == BUCKETS[0]
    assert found["blk.2.gpu_idx"] == [1] * N_FF
    assert "blk.1.gpu_bucket" not in found and found["blk.1.gpu_idx"] == [0] * N_FF


FAULTS = [
    ("arch", power_infer(arch="llama"), "'llama'"),
    ("too few layers", power_infer(n_layer=4), "blk.3.gpu_idx"),
    ("too many layers", power_infer(n_layer=2), "blk.2.gpu_idx"),
    ("no layers", power_infer(n_layer=0), "block_count"),
    (
        "flag",
        power_infer(rows={"blk.1.gpu_idx": [2] * N_FF}),
        "'blk.1.gpu_idx': found a value of 2",
    ),
    ("size", power_infer(rows={"blk.1.gpu_idx": [0] * 4}), "'blk.1.gpu_idx': found 4 neurons"),
    ("bucket", power_infer(rows={"blk.0.gpu_bucket": [0, 3, 9]}), "blk.0.gpu_bucket"),
    ("order", power_infer(rows={"blk.0.gpu_bucket": [3, 0, 10]}), "blk.0.gpu_bucket"),
]


@pytest.mark.parametrize(("content", "says"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_faults_are_named(content: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=says):
        open_split(b.write(tmp_path, content))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"n_layer": 2}, "block_count.*found 3, expected 2: this split is for another model"),
        ({"n_ff": 12}, "found 11, expected 12: this split is for another model"),
        (
            {"model_hash": "beef"},
            "model_hash.*found f00d, expected beef: this split is for another",
        ),
    ],
)
def test_a_split_for_another_model(asked: dict[str, object], says: str, tmp_path: Path) -> None:
    path = tmp_path / "s.gpuidx"
    write_split(path, NeuronSplit(N_FF, tuple(np.array(ids) for ids in BUCKETS)), "f00d", 1)
    with pytest.raises(GgufError, match=says):
        read_split(path, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [[1, 0], [0, 0], [-1], [N_FF], [[0]], [0.5]])
def test_a_bucket_that_is_none(ids: list[object]) -> None:
    with pytest.raises(ValueError, match="blk.0.gpu_bucket"):
        NeuronSplit(N_FF, (np.array(ids),))
