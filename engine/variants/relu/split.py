"""Which neurons of each layer a device keeps, and the file that says so.

The file is GGUF in the layout of PowerInfer's `<model>.generated.gpuidx`, whose files are read
unchanged: architecture `generic.gpu_index`, keys `generic.gpu_index.block_count` and
`split.vram_capacity` (bytes); for each layer `blk.N.gpu_idx` i32 [n_ff], 1 for a neuron of the
device, and `blk.N.gpu_bucket` i32 [n_gpu], their ids in ascending order. Ours add
`split.model_hash`, which says what model the split is for.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from gguflow.engine.dataclass import dataclass
from gguflow.engine.gguf import GgufError, GgufFile, Typed
from gguflow.engine.gguf.keys import INT64_MAX
from gguflow.engine.graph import I32

SPLIT_ARCH = "generic.gpu_index"
_COUNT_KEY = f"{SPLIT_ARCH}.block_count"
_BYTES_KEY = "split.vram_capacity"
_HASH_KEY = "split.model_hash"
MOST_LAYERS = 1 << 12


@dataclass(frozen=True)
class NeuronSplit:
    """The device's neurons by layer.

    n_ff: neurons of a layer. buckets: i32 arrays of ids, strictly ascending; raises ValueError
    naming the layer for one that is not.
    """

    n_ff: int
    buckets: tuple[np.ndarray, ...]

    def __post_init__(self) -> None:
        for i, bucket in enumerate(self.buckets):
            ids = np.asarray(bucket)
            if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
                raise ValueError(f"blk.{i}.gpu_bucket: expected a row of whole numbers")
            if ids.size and not (ids[0] >= 0 and ids[-1] < self.n_ff and (np.diff(ids) > 0).all()):
                raise ValueError(
                    f"blk.{i}.gpu_bucket: expected ids in ascending order below {self.n_ff}"
                )
        whole = tuple(np.ascontiguousarray(b, np.int32) for b in self.buckets)
        object.__setattr__(self, "buckets", whole)

    @property
    def n_layer(self) -> int:
        return len(self.buckets)

    @property
    def n_gpu(self) -> tuple[int, ...]:
        """Neurons on the device, by layer."""
        return tuple(b.size for b in self.buckets)

    def gpu_idx(self, i: int) -> np.ndarray:
        """i32 [n_ff] of layer `i`: 1 for the device's neurons."""
        idx = np.zeros(self.n_ff, np.int32)
        idx[self.buckets[i]] = 1
        return idx

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, NeuronSplit)
            and (self.n_ff, self.n_gpu) == (other.n_ff, other.n_gpu)
            and all(np.array_equal(a, b) for a, b in zip(self.buckets, other.buckets, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class StoredSplit:
    """A split file. vram_bytes: the budget it was made for; model_hash: None in PowerInfer's."""

    path: str
    split: NeuronSplit
    vram_bytes: int
    model_hash: str | None


def is_split(file: GgufFile) -> bool:
    """Whether a GGUF file is a split, by its architecture."""
    return file.keys.text("general.architecture", None) == SPLIT_ARCH


def open_split(path: str | os.PathLike[str]) -> StoredSplit:
    """Read a split file, checked against itself. Raises GgufError naming key or tensor."""
    # PowerInfer writes an empty bucket as a tensor without elements.
    with GgufFile.open(path, empty_tensors=True) as f:
        if not is_split(f):
            arch = f.keys.text("general.architecture", None)
            raise GgufError(f.path, "key 'general.architecture'", repr(arch), repr(SPLIT_ARCH))
        n_layer = f.keys.integer(_COUNT_KEY, least=1, most=MOST_LAYERS)
        idx = [_flags(f, i) for i in range(n_layer)]
        n_ff = idx[0].size
        buckets = []
        for i, flags in enumerate(idx):
            if flags.size != n_ff:
                raise GgufError(
                    f.path,
                    f"tensor 'blk.{i}.gpu_idx'",
                    f"{flags.size} neurons",
                    f"{n_ff} as before",
                )
            buckets.append(_bucket(f, i, flags))
        if extra := [n for n in f.tensors if _layer_of(n) >= n_layer]:
            raise GgufError(f.path, f"tensor {extra[0]!r}", "it", f"{n_layer} layers at most")
        vram = f.keys.integer(_BYTES_KEY, 0, most=INT64_MAX)
        owner = f.keys.text(_HASH_KEY, None)
        return StoredSplit(f.path, NeuronSplit(n_ff, tuple(buckets)), vram, owner)


def read_split(
    path: str | os.PathLike[str],
    n_layer: int | None = None,
    n_ff: int | None = None,
    model_hash: str | None = None,
) -> NeuronSplit:
    """The split in a file, which must be for this model where its facts are given.

    A file without a hash (PowerInfer's) is held to its sizes alone. Raises GgufError.
    """
    stored = open_split(path)
    split = stored.split
    for field, found, expected in (
        (f"key {_COUNT_KEY!r}", split.n_layer, n_layer),
        ("tensor 'blk.0.gpu_idx' size", split.n_ff, n_ff),
        (f"key {_HASH_KEY!r}", stored.model_hash, stored.model_hash and model_hash),
    ):
        if expected is not None and found != expected:
            raise GgufError(path, field, found, f"{expected}: this split is for another model")
    return split


def write_split(
    path: str | os.PathLike[str], split: NeuronSplit, model_hash: str, vram_bytes: int
) -> None:
    """Write a split file. model_hash: what `sparse.identity` says of the model; vram_bytes: the
    budget. A layer without neurons on the device has no bucket in the file."""
    from gguflow.engine.gguf import write_gguf

    metadata: dict[str, Any] = {
        "general.architecture": SPLIT_ARCH,
        _COUNT_KEY: Typed("u32", split.n_layer),
        _BYTES_KEY: Typed("u64", vram_bytes),
        _HASH_KEY: model_hash,
    }
    tensors = {}
    for i, bucket in enumerate(split.buckets):
        tensors[f"blk.{i}.gpu_idx"] = (I32, (split.n_ff,), split.gpu_idx(i))
        if bucket.size:
            tensors[f"blk.{i}.gpu_bucket"] = (I32, bucket.shape, bucket)
    write_gguf(path, metadata, tensors)


def _layer_of(name: str) -> int:
    found = re.fullmatch(r"blk\.(\d{1,9})\.gpu_(?:idx|bucket)", name)
    return int(found[1]) if found else -1


def _flags(f: GgufFile, i: int) -> np.ndarray:
    name = f"blk.{i}.gpu_idx"
    flags = _row(f, name)
    if ((flags != 0) & (flags != 1)).any():
        bad = int(flags[(flags != 0) & (flags != 1)][0])
        raise GgufError(f.path, f"tensor {name!r}", f"a value of {bad}", "0 or 1")
    return flags


def _bucket(f: GgufFile, i: int, flags: np.ndarray) -> np.ndarray:
    """The layer's ids; a file may leave the bucket out, for the flags say it all."""
    ids = np.flatnonzero(flags).astype(np.int32)
    name = f"blk.{i}.gpu_bucket"
    if name in f.tensors and not np.array_equal(_row(f, name), ids):
        raise GgufError(
            f.path, f"tensor {name!r}", "other neurons", f"the {ids.size} of blk.{i}.gpu_idx"
        )
    return ids


def _row(f: GgufFile, name: str) -> np.ndarray:
    """A tensor of one row of i32. Raises GgufError when it is missing or anything else."""
    values = f.array(name)
    if values.dtype != np.int32 or values.ndim != 1:
        found = f"{f.tensors[name].dtype.name}{list(values.shape)}"
        raise GgufError(f.path, f"tensor {name!r}", found, "one row of i32")
    return values
