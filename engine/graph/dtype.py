"""Element types: names, GGUF ids and block layouts.

A quantized type packs `block` elements into `nbytes` bytes. Plain types are blocks of one.
Plain types are defined here; each quantized type registers itself from its file in `engine/quants`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from gguflow.engine.dataclass import dataclass


@dataclass(frozen=True, eq=False)
class DType:
    """One element type. There is one object of each, copies and other processes included.

    name: ggml's name in lower case (`f32`, `q4_0`, `q4_K`).
    ggml_id: the number GGUF files use.
    block: elements a block; nbytes: bytes a block.
    storage: numpy dtype of the raw buffer (uint8 for quantized types, uint16 for bf16).
    """

    name: str
    ggml_id: int
    block: int
    nbytes: int
    storage: np.dtype

    @property
    def is_quantized(self) -> bool:
        return self.block > 1

    @property
    def is_integer(self) -> bool:
        return self.storage.kind == "i" and not self.is_quantized

    def row_bytes(self, n: int) -> int:
        """Bytes of one contiguous row of `n` elements. Raises ValueError if a block is split."""
        if n % self.block:
            raise ValueError(
                f"{self.name}: a row of {n} is no multiple of its block of {self.block}"
            )
        return n // self.block * self.nbytes

    def array_bytes(self, shape: Sequence[int]) -> int:
        """Bytes of a dense array of this shape. Raises ValueError if a block is split."""
        return prod(shape[:-1]) * self.row_bytes(shape[-1]) if shape else self.nbytes

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        return dtype_by_name, (self.name,)


_BY_NAME: dict[str, DType] = {}
_BY_ID: dict[int, DType] = {}


def register_dtype(dtype: DType) -> DType:
    """Make `dtype` findable by name and GGUF id; both must be free."""
    if dtype.name in _BY_NAME or dtype.ggml_id in _BY_ID:
        raise ValueError(f"element type {dtype.name} (id {dtype.ggml_id}) is already registered")
    _BY_NAME[dtype.name] = dtype
    _BY_ID[dtype.ggml_id] = dtype
    return dtype


def dtype_by_name(name: str) -> DType:
    """The type called `name` (case matters only for the K of K-quants). Raises KeyError."""
    found = _BY_NAME.get(name) or next(
        (d for n, d in _BY_NAME.items() if n.lower() == name.lower()), None
    )
    if found is None:
        raise KeyError(f"unknown element type {name!r}; known: {', '.join(sorted(_BY_NAME))}")
    return found


def dtype_by_id(ggml_id: int) -> DType | None:
    """The type with this GGUF number, or None."""
    return _BY_ID.get(ggml_id)


def all_dtypes() -> list[DType]:
    """Every registered type, by GGUF id."""
    return [_BY_ID[i] for i in sorted(_BY_ID)]


def _plain(name: str, ggml_id: int, storage: str) -> DType:
    dt = np.dtype(storage)
    return register_dtype(DType(name, ggml_id, 1, dt.itemsize, dt))


F32 = _plain("f32", 0, "<f4")

# The least float32 above zero: `x < LEAST_POSITIVE` holds for what ReLU makes zero, and for nothing
# else (not for NaN). As the threshold of a sparse op whose scores are the gates themselves it makes
# the op exact: what it leaves out would have been multiplied by zero.
LEAST_POSITIVE = float(np.finfo(np.float32).smallest_subnormal)


def least_above(x: float) -> float:
    """The float32 after that of `x`, which is LEAST_POSITIVE for 0: the same threshold for a ReLU
    that makes zero what is not above `x`."""
    return float(np.nextafter(np.float32(x), np.float32(np.inf)))


F16 = _plain("f16", 1, "<f2")
I8 = _plain("i8", 24, "i1")
I16 = _plain("i16", 25, "<i2")
I32 = _plain("i32", 26, "<i4")
I64 = _plain("i64", 27, "<i8")
F64 = _plain("f64", 28, "<f8")
BF16 = _plain("bf16", 30, "<u2")
