"""safetensors files: a length, a JSON header, tensors side by side. Mapped, checked against the
file's size before anything is read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.graph import BF16, F16, F32, I8, DType
from gguflow.engine.mapped import MappedBytes
from gguflow.engine.opened import open_file

MAX_HEADER = 100 << 20  # bytes, the format's own limit
MAX_DIMS = 8
# Four bits of exponent and three of fraction; GGUF has no such type, and `fp8` knows its values.
F8 = DType("f8_e4m3", -1, 1, 1, np.dtype("u1"))
_TYPES = {"F32": F32, "F16": F16, "BF16": BF16, "F8_E4M3": F8}
_BYTES = {"U8": I8}  # of packed numbers, taken as they are by who knows what they mean


class ConvertError(ValueError):
    """A checkpoint that cannot be converted: names the file and the key or tensor."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor in a file: numbers of `dtype`, shape in numpy order, read when asked for.

    fault: what became of the file since it was opened, None while it is what it was.
    """

    dtype: DType
    shape: tuple[int, ...]
    raw: np.ndarray  # uint8, mapped
    fault: Callable[[], str | None] = lambda: None

    def values(self) -> np.ndarray:
        """The numbers in the type's storage, of `shape`; a view of the file."""
        return self.raw.view(self.dtype.storage).reshape(self.shape)


def read_header(path: Path) -> dict[str, Stored]:
    """Every tensor of a file of numbers that weights are made of. Raises ConvertError."""

    def wrong(what: str) -> ConvertError:
        return ConvertError(f"{path}: {what}")

    try:
        with open_file(path, regular=True) as f:
            size = os.fstat(f.fileno()).st_size
            file = MappedBytes(f.fileno()) if size else None
    except (OSError, ValueError) as e:  # of a name that is none, too
        raise wrong(getattr(e, "strerror", None) or str(e)) from None
    if file is None or size < 8:
        raise wrong(f"{size} bytes: no safetensors file")
    data = file.data

    def fault() -> str | None:
        found = file.fault()
        return found and f"{path}: found {found}"

    n = int.from_bytes(data[:8], "little")
    if n > min(MAX_HEADER, size - 8):
        raise wrong(f"a header of {n} bytes in a file of {size}")
    try:
        header = json.loads(data[8 : 8 + n])
    except (ValueError, RecursionError) as e:
        raise wrong(f"the header is no JSON: {e}") from None
    if not isinstance(header, dict):
        raise wrong("the header is no object")
    whole = np.frombuffer(data, np.uint8)[8 + n :]
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            stored = _stored(entry, whole, lambda text, name=name: wrong(f"{name}: {text}"))
            found[name] = replace(stored, fault=fault)
    return found


def _stored(entry: Any, whole: np.ndarray, wrong: Any) -> Stored:
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise wrong("neither type, shape nor place") from None
    numbers = [begin, end, *shape] if isinstance(shape, list) else [None]
    if not all(type(x) is int and 0 <= x < 1 << 48 for x in numbers) or len(shape) > MAX_DIMS:
        raise wrong("a bad shape or place")
    if not isinstance(kind, str):
        raise wrong(f"element type {kind!r}")
    if kind not in _TYPES:
        if kind in ("I64", "I32", "BOOL", "I8", "F64"):  # masks and the like: never weights
            return Stored(F32, (0,), whole[:0])
        if kind not in _BYTES:
            raise wrong(f"element type {kind!r} is not supported; have {', '.join(_TYPES)}")
    dtype = _TYPES.get(kind) or _BYTES[kind]
    if end - begin != prod(shape) * dtype.nbytes or end > len(whole):
        raise wrong(f"bytes {begin} to {end} for {kind}{shape} in {len(whole)} bytes of data")
    return Stored(dtype, tuple(shape), whole[begin:end])
