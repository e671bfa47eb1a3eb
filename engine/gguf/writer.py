"""write_gguf: writes a GGUF file tensor by tensor, over the gguf package's GGUFWriter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np
from gguf.constants import GGMLQuantizationType, GGUFValueType
from gguf.gguf_writer import GGUFWriter, WriterState

from gguflow.engine.dataclass import dataclass
from gguflow.engine.files import whole_file
from gguflow.engine.opened import file_kind

from .encode import encode, encode_string
from .errors import GgufError, show
from .header import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, alignment_fault
from .metadata import MAX_KEY_BYTES
from .synced import SyncedMeanwhile
from .tensors import MAX_DIMS, MAX_NAME_BYTES, ElementType
from .values import Typed

Bytes: TypeAlias = bytes | bytearray | memoryview | np.ndarray
# A tensor's data, whole or in pieces, now or when its turn comes.
Source: TypeAlias = Bytes | Iterable[Bytes] | Callable[[], Bytes | Iterable[Bytes]]
Tensor: TypeAlias = tuple[ElementType, tuple[int, ...], Source]

_PIECE = 16 << 20  # bytes written between two calls of `progress`


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = (),
    alignment: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Write a GGUF v3 file, little-endian. It appears under its name only when it is complete.

    metadata: values by key, written in order: bool, int (u32; i32 if negative; 64 bits if it must),
        float (f32), str, lists, numpy arrays (their own type), or Typed to choose.
    tensors: (dtype, shape, data) by name, shape in numpy order. `data` is a buffer or array; or an
        iterable of such pieces; or a function that returns either, called when the tensor is
        written, so that a large model is never in memory as a whole.
    alignment: of the tensor data; by default what the metadata says, or 32.
    progress: called with the bytes of tensor data written so far, those in all, and a tensor name.

    Raises GgufError naming the key or tensor that cannot be written, and for a failing disk.
    """
    target = os.path.realpath(path)
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    plans = _plan(target, pairs)
    values = dict(metadata)
    alignment = _alignment(target, values, alignment)
    if os.path.exists(target) and (kind := file_kind(os.stat(target).st_mode)):
        raise GgufError(target, "file", kind, "a regular file or a new one")
    # A copy made over its own source does not pull the mapped data away: its part is another file.
    try:
        with whole_file(target) as part:
            writer = _Writer(str(part))
            for key, value in values.items():
                writer.add_encoded(target, key, value)
            for p in plans:
                writer.plan(p)
            writer.data_alignment = alignment
            try:
                writer.write_header_to_file()
                writer.write_kv_data_to_file()
                writer.write_ti_data_to_file()
                _write_data(writer, target, plans, progress)
            finally:
                writer.close()
    except OSError as e:
        raise GgufError(target, "file", e.strerror or e, "a place that can be written to") from e


@dataclass(frozen=True)
class _Plan:
    """A tensor to be written: `nbytes` are what its type and shape ask for."""

    name: str
    dtype: ElementType
    shape: tuple[int, ...]
    nbytes: int
    source: Source


class _Writer(GGUFWriter):
    """GGUFWriter with our own value encoding.

    The base class cannot write empty arrays, element types inside nested arrays, or strings that
    are not UTF-8, all of which a copy of a file may need.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, arch="")

    def add_architecture(self) -> None:
        """Nothing: the caller's metadata says it, in the place it wants."""

    def add_encoded(self, path: str, key: str, value: Any) -> None:
        try:
            type_id, encoded = encode(value)
            n = len(key.encode("utf-8"))
        except (TypeError, ValueError) as e:
            expected = value.kind if isinstance(value, Typed) else "a value GGUF has a type for"
            raise GgufError(path, f"key {show(key)}", e, expected) from None
        if not 1 <= n <= MAX_KEY_BYTES:
            raise GgufError(path, f"key {show(key)}", f"{n} bytes", f"1 to {MAX_KEY_BYTES}")
        self.add_key_value(key, encoded, GGUFValueType(type_id))

    def plan(self, p: _Plan) -> None:
        # The numpy type is looked at only when there is no raw_dtype, or to undo a byte shape.
        self.add_tensor_info(
            p.name,
            p.shape,
            np.dtype(np.void),
            p.nbytes,
            raw_dtype=GGMLQuantizationType(p.dtype.ggml_id),
        )

    def write_kv_data_to_file(self) -> None:
        assert self.fout is not None
        for key, v in self.kv_data[0].items():
            self.fout[0].write(encode_string(key) + v.type.to_bytes(4, "little") + v.value)
        self.state = WriterState.KV_DATA


def _alignment(path: str, metadata: dict[str, Any], asked: int | None) -> int:
    """The alignment to use; `metadata` gets its key when it is not the default."""
    said = metadata.get(ALIGNMENT_KEY)
    said = said.value if isinstance(said, Typed) else said
    alignment = asked if asked is not None else DEFAULT_ALIGNMENT if said is None else said
    fault = alignment_fault(alignment) if isinstance(alignment, int) else "an int"
    if fault is None and said is not None and said != alignment:
        fault = f"{said} as key {ALIGNMENT_KEY!r} says"
    if fault:
        raise GgufError(path, "alignment", show(alignment), fault)
    if said is not None or alignment != DEFAULT_ALIGNMENT:
        metadata[ALIGNMENT_KEY] = Typed("u32", alignment)
    return alignment


def _plan(path: str, tensors: Iterable[tuple[str, Tensor]]) -> list[_Plan]:
    """Every tensor checked and sized."""
    plans: dict[str, _Plan] = {}
    for name, (dtype, shape, source) in tensors:
        field = f"tensor {show(name)}"
        try:
            n = len(name.encode("utf-8"))
        except UnicodeEncodeError as e:
            raise GgufError(path, f"{field} name", e, "UTF-8") from None
        if not 1 <= n <= MAX_NAME_BYTES:
            raise GgufError(path, f"{field} name", f"{n} bytes", f"1 to {MAX_NAME_BYTES}")
        if name in plans:
            raise GgufError(path, field, "it again", "each name once")
        shape = tuple(int(d) for d in shape)
        if not 1 <= len(shape) <= MAX_DIMS or min(shape) < 1 or shape[-1] % dtype.block:
            raise GgufError(
                path,
                f"{field} shape",
                list(shape),
                f"1 to {MAX_DIMS} dimensions of 1 or more, rows a multiple of "
                f"{dtype.name}'s block of {dtype.block}",
            )
        nbytes = prod(shape) // dtype.block * dtype.nbytes
        plans[name] = _Plan(name, dtype, shape, nbytes, source)
    return list(plans.values())


def _write_data(
    writer: GGUFWriter,
    path: str,
    plans: list[_Plan],
    progress: Callable[[int, int, str], None] | None,
) -> None:
    assert writer.fout is not None
    out = writer.fout[0]
    if plans:
        writer.write_padding(out, out.tell())
    total = sum(p.nbytes for p in plans)
    done = 0
    with SyncedMeanwhile(out) as synced:
        for p in plans:
            written = 0
            for piece in _pieces(p, path):
                written += len(piece)
                if written > p.nbytes:
                    break
                out.write(piece)
                synced.wrote(len(piece))
                done += len(piece)
                if progress:
                    progress(done, total, p.name)
            _check_written(p, path, written)
            writer.write_padding(out, p.nbytes)


def _check_written(p: _Plan, path: str, written: int) -> None:
    if written != p.nbytes:
        more = " or more" if written > p.nbytes else ""
        raise GgufError(
            path,
            f"tensor {show(p.name)} data",
            f"{written} bytes{more}",
            f"{p.nbytes} bytes of {p.dtype.name}{list(p.shape)}",
        )


def _pieces(p: _Plan, path: str) -> Iterator[memoryview]:
    """The data of `p` in buffers of a convenient size."""
    source = p.source() if callable(p.source) else p.source
    parts = (source,) if isinstance(source, Bytes) else source
    for part in parts:
        array = part if isinstance(part, np.ndarray) else np.frombuffer(part, np.uint8)
        if array.dtype != np.uint8 and (
            array.dtype != getattr(p.dtype, "storage", None)
            or (part is source and array.ndim > 1 and array.shape != p.shape)
        ):
            raise GgufError(
                path,
                f"tensor {show(p.name)} data",
                f"an array of {array.dtype}{list(array.shape)}",
                f"{p.dtype.name}{list(p.shape)} or bytes",
            )
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        for i in range(0, len(raw), _PIECE):
            yield raw[i : i + _PIECE]
