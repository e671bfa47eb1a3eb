"""Reads the tensor section of a header: names, types, shapes and where the data lies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

# Importing the quantized types registers them.
import gguflow.engine.quants  # noqa: F401
from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import DType, dtype_by_id

from .cursor import Cursor
from .errors import show

MAX_TENSORS = 1 << 17  # a model of 4,096 layers has half of it; a million take seconds to read
MAX_NAME_BYTES = 64  # from the specification
MAX_DIMS = 4
_INT64_MAX = (1 << 63) - 1
LEAST_INFO_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # name length, one letter, dims, one size, type, offset


@dataclass(frozen=True)
class UnsupportedType:
    """An element type GGUF knows and this engine has no code for: enough to list and locate it.

    Fields as in `DType`; the `gguf` package can dequantize it, by `ggml_id`.
    """

    name: str
    ggml_id: int
    block: int
    nbytes: int

    @property
    def is_quantized(self) -> bool:
        return self.block > 1

    def __repr__(self) -> str:
        return self.name


ElementType: TypeAlias = DType | UnsupportedType


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file.

    shape: numpy order, outermost dimension first (the file's order is undone here).
    offset: of the first byte in the file at `path`, from its beginning; nbytes: of the data.
    """

    name: str
    dtype: ElementType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    path: str


@cache
def _unsupported_types() -> dict[int, UnsupportedType]:
    # Imported when first needed: most files hold registered types only.
    from gguf.constants import GGML_QUANT_SIZES

    # ggml writes the K of K-quants large and the rest small.
    return {
        int(t): UnsupportedType(t.name.lower().replace("_k", "_K"), int(t), block, nbytes)
        for t, (block, nbytes) in GGML_QUANT_SIZES.items()
    }


def element_type(ggml_id: int) -> ElementType | None:
    """The type with this GGUF number: registered, or at least of known size, or None."""
    return dtype_by_id(ggml_id) or _unsupported_types().get(ggml_id)


def read_tensor_infos(
    cur: Cursor, n_tensors: int, alignment: int, least: int = 1
) -> list[TensorInfo]:
    """`n_tensors` entries, checked against each other; the data has still to be checked.

    least: size of a dimension. Offsets are those in the file: relative to the start of the data,
    which follows the entries.
    """
    infos: list[TensorInfo] = []
    seen: set[str] = set()
    for i in range(n_tensors):
        at = cur.pos
        name = cur.name(f"tensor {i} of {n_tensors} name", MAX_NAME_BYTES)
        field = f"tensor {show(name)}"
        if name in seen:
            raise cur.error(
                f"tensor {i} of {n_tensors} name", f"{show(name)} again", "each name once", at
            )
        seen.add(name)
        ne = _read_ne(cur, field, least)
        at = cur.pos
        dtype = element_type(type_id := cur.scalar("I", f"{field} type"))
        if dtype is None:
            raise cur.error(f"{field} type", f"{type_id}", "the number of a known element type", at)
        if ne[0] % dtype.block:
            raise cur.error(
                f"{field} row",
                f"{ne[0]} elements",
                f"a multiple of {dtype.name}'s block of {dtype.block}",
                at,
            )
        n_elements = 1
        for n in ne:
            n_elements *= n
        nbytes = n_elements // dtype.block * dtype.nbytes
        at = cur.pos
        offset = cur.scalar("Q", f"{field} offset")
        if offset % alignment:
            raise cur.error(f"{field} offset", f"{offset}", f"a multiple of {alignment}", at)
        infos.append(TensorInfo(name, dtype, tuple(reversed(ne)), offset, nbytes, cur.path))
    return infos


def _read_ne(cur: Cursor, field: str, least: int) -> list[int]:
    """Elements in each dimension, innermost first."""
    at = cur.pos
    n_dims = cur.scalar("I", f"{field} number of dimensions")
    if not 1 <= n_dims <= MAX_DIMS:
        raise cur.error(f"{field} number of dimensions", n_dims, f"1 to {MAX_DIMS}", at)
    ne: list[int] = []
    n_elements = 1
    for d in range(n_dims):
        at = cur.pos
        n = cur.scalar("Q", f"{field} dimension {d}")
        n_elements *= n
        if not least <= n_elements <= _INT64_MAX:
            raise cur.error(
                f"{field} dimension {d}",
                f"{n}" + (f" after {ne}" if ne else ""),
                f"{least} or more, and a product below 2^63",
                at,
            )
        ne.append(n)
    return ne


def locate(cur: Cursor, infos: Sequence[TensorInfo], start: int, n_bytes: int) -> list[TensorInfo]:
    """`infos` with offsets from the beginning of a file of `n_bytes`, whose data begins at `start`.

    Raises GgufError when a tensor's data ends after the file or overlaps another's.
    """
    located = [
        TensorInfo(t.name, t.dtype, t.shape, start + t.offset, t.nbytes, t.path) for t in infos
    ]
    last: TensorInfo | None = None
    for t in sorted(located, key=lambda t: t.offset):
        field = f"tensor {show(t.name)} data"
        if t.offset + t.nbytes > n_bytes:
            raise cur.error(
                field,
                f"{max(n_bytes - t.offset, 0)} bytes before the end of the file",
                f"{t.nbytes} bytes (truncated?)",
                t.offset,
            )
        if last is not None and t.offset < last.offset + last.nbytes:
            raise cur.error(
                field,
                f"an overlap with tensor {show(last.name)}",
                f"byte {last.offset + last.nbytes} or later",
                t.offset,
            )
        last = t
    return located
