"""GgufFile: an opened model file, or a model's set of shards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from gguflow.engine.graph import DType

from .errors import GgufError, show
from .header import Header, read_header
from .keys import KeyReader
from .mapping import MappedFile
from .shards import check_shards, shard_paths
from .tensors import TensorInfo
from .values import Typed, kind_matches, kind_name

_SAMPLE, _SAMPLES = 4096, 16  # of a file's contents, for its identity


class GgufFile:
    """A GGUF model: metadata, tensor list, and the tensors' bytes without a copy.

        with GgufFile.open("model.gguf") as f:
            n_layers = f.require("llama.block_count", int)
            w = f.array("blk.0.attn_norm.weight")

    The header is read and checked as a whole by `open`; tensor data is only mapped. A model split
    into shards is opened by the name of any of them; the first one's metadata is the model's.

    path: the file, the first of the shards; shards: all of them; n_bytes: of them all together.
    magic: "GGUF", or "PWRI" for PowerInfer's files; version, alignment, big_endian: of the first.
    metadata: values by key: int, float, bool, str; read-only numpy arrays for arrays of numbers,
        StringArray for strings, lists for arrays of arrays.
    keys: the same values, read with the type and the bounds that somebody needs.
    types: the kind each value has in the file (`u32`, `arr[str]`, see `values`), by key.
    tensors: TensorInfo by name, in file order.
    """

    def __init__(self, files: list[MappedFile], headers: list[Header]) -> None:
        first = headers[0]
        self._files = {f.path: f for f in files}
        self._swapped = {f.path for f, h in zip(files, headers, strict=True) if h.big_endian}
        self.path = files[0].path
        self.shards = [f.path for f in files]
        self.n_bytes = sum(f.bytes.size for f in files)
        self.magic = first.magic
        self.version = first.version
        self.alignment = first.alignment
        self.big_endian = first.big_endian
        self.metadata: Mapping[str, Any] = first.metadata
        self.types: Mapping[str, str] = first.types
        self.keys = KeyReader(self.metadata, self.path)
        self.tensors: dict[str, TensorInfo] = {}
        for h in headers:
            for t in h.tensors:
                if t.name in self.tensors:
                    raise GgufError(
                        t.path,
                        f"tensor {show(t.name)}",
                        f"it in {show(self.tensors[t.name].path)} too",
                        "each name once",
                    )
                self.tensors[t.name] = t

    @classmethod
    def open(cls, path: str | bytes | os.PathLike[str], empty_tensors: bool = False) -> GgufFile:
        """Map the file, and its sibling shards if it is one of several, and check the headers.

        empty_tensors: let tensors have no elements, which no model's weights may.
        Raises GgufError for whatever is wrong, a missing file included.
        """
        name = os.fsdecode(path)
        files: dict[str, MappedFile] = {}
        headers: dict[str, Header] = {}

        def load(p: str) -> None:
            if p not in files:
                files[p] = MappedFile(p)
                headers[p] = read_header(p, files[p].bytes.data, empty_tensors)

        try:
            load(name)
            paths = shard_paths(name, headers[name])
            for i, p in enumerate(paths):
                if not os.path.exists(p):
                    raise GgufError(p, "file", "no such file", f"shard {i + 1} of {len(paths)}")
                load(p)
            check_shards(paths, [headers[p] for p in paths])
            for p in paths:
                files[p].check()
            return cls([files[p] for p in paths], [headers[p] for p in paths])
        except BaseException:
            for f in files.values():
                f.close()
            raise

    # -- metadata ------------------------------------------------------------------------------

    def get(self, key: str, default: Any = None, kind: str | type | None = None) -> Any:
        """The value of `key`, or `default` if there is none. With `kind`, checked as in require."""
        if key not in self.metadata:
            return default
        return self.metadata[key] if kind is None else self.require(key, kind)

    def require(self, key: str, kind: str | type) -> Any:
        """The value of `key`, which must be there and of `kind`. Raises GgufError otherwise.

        kind: int (any width), float (either), bool, str, list or np.ndarray (any array); or a kind
        by name: `u32`, `arr[str]`, `arr[int]`, `arr[float]`.
        """
        wanted = kind_name(kind)
        found = self.types.get(key)
        if found is None or not kind_matches(found, wanted):
            raise GgufError(self.path, f"key {show(key)}", found or "no such key", wanted)
        return self.metadata[key]

    def typed_metadata(self) -> dict[str, Typed]:
        """The metadata with each value's kind, as `write_gguf` takes it to write the same again."""
        return {key: Typed(self.types[key], value) for key, value in self.metadata.items()}

    # -- tensors -------------------------------------------------------------------------------

    def _tensor(self, name: str) -> tuple[TensorInfo, MappedFile]:
        info = self.tensors.get(name)
        if info is None:
            raise GgufError(
                self.path,
                f"tensor {show(name)}",
                "no such tensor",
                f"one of the {len(self.tensors)} there are",
            )
        file = self._files.get(info.path)
        if file is None:
            raise ValueError(f"{self.path} is closed")
        return info, file

    def data(self, name: str) -> np.ndarray:
        """The bytes of a tensor: read-only uint8 [nbytes], a view of the mapped file.

        Big-endian files give a little-endian copy of plain types and GgufError for quantized ones.
        """
        info, file = self._tensor(name)
        raw = file.bytes[info.offset : info.offset + info.nbytes]
        if info.path not in self._swapped:
            return raw
        if info.dtype.is_quantized:
            raise GgufError(
                info.path,
                f"tensor {show(name)} type",
                f"{info.dtype} in big-endian order",
                "a plain type or a little-endian file",
                offset=info.offset,
            )
        swapped = raw.view(f"u{info.dtype.nbytes}").byteswap().view(np.uint8)
        swapped.flags.writeable = False
        return swapped

    def array(self, name: str) -> np.ndarray:
        """A tensor of a plain type as a read-only array of its shape; bf16 as uint16.

        Raises GgufError for quantized types. The elements are a view as in `data`.
        """
        info, _ = self._tensor(name)
        if not isinstance(info.dtype, DType) or info.dtype.is_quantized:
            raise GgufError(
                info.path,
                f"tensor {show(name)} type",
                info.dtype,
                "a plain type such as f32 or f16",
                offset=info.offset,
            )
        array: np.ndarray = self.data(name).view(info.dtype.storage)
        return array.reshape(info.shape)

    def advise(self, name: str, advice: str) -> None:
        """Tell the system that a tensor is needed soon, or no longer.

        `willneed` reads its pages ahead; `dontneed` takes them out of resident memory, from where
        they come back if touched. Does nothing where the system has no madvise.
        """
        info, file = self._tensor(name)
        file.advise(info.offset, info.nbytes, advice)

    def identity(self) -> str:
        """A text that changes with the files: sizes, times of change, inodes, and samples of the
        contents for systems whose times say little. Reads no more than 64 KiB of each."""
        from hashlib import sha256  # a file that nothing is kept of needs none

        digest = sha256()
        for path, file in self._files.items():
            s = file.status
            digest.update(repr((path == self.path, s.st_size, s.st_mtime_ns, s.st_ino)).encode())
            if os.name == "posix":  # elsewhere it is the time of creation
                digest.update(repr(s.st_ctime_ns).encode())
            step = max(1, (file.bytes.size - _SAMPLE) // (_SAMPLES - 1))
            for at in range(0, file.bytes.size, step):
                digest.update(file.bytes[at : at + _SAMPLE].tobytes())
        return digest.hexdigest()

    def check(self) -> None:
        """Raises GgufError naming a file that another program has changed since it was opened: what
        was read or computed from it is of no use. Cheap; asked after every run of a model."""
        for file in self._files.values():
            file.check()

    # -- closing -------------------------------------------------------------------------------

    def close(self) -> None:
        """Unmap the files. Arrays from `data` and `array` stay valid, and delay that."""
        while self._files:
            self._files.popitem()[1].close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.path}: {len(self.metadata)} keys, {len(self.tensors)} tensors>"
