"""A model before any memory is spent on it: a file becomes an architecture and checked weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import gguflow.engine.ops  # noqa: F401  (registers the op specifications)
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.gguf import GgufFile
from gguflow.engine.graph import F16, F32, DType, dtype_by_name
from gguflow.engine.harmless import one_line
from gguflow.engine.quants import decode, dequantize_any, encode
from gguflow.models.base import Architecture, ModelError, WeightSpec, architecture
from gguflow.models.both_ways import check_both_ways
from gguflow.models.hparams import architecture_name
from gguflow.models.keys import Asked

from . import powerinfer


@dataclass(frozen=True, eq=False)
class FileBytes:
    """Reads a weight of a file. origin: what the bytes follow from, the file given: the same text
    for the same bytes. A weight that is made in another way has another reader."""

    origin: str
    fn: Callable[[], np.ndarray]

    def __call__(self) -> np.ndarray:
        return self.fn()


@dataclass(frozen=True, eq=False)
class RepeatedRows:
    """Reads a weight of n_rows whose rows repeat the first ones again and again, uint8 [n_first,
    bytes of a row]: a backend that repeats them itself needs these alone."""

    first: Callable[[], np.ndarray]
    n_first: int
    n_rows: int

    def __call__(self) -> np.ndarray:
        first = self.first()
        return np.resize(first, self.n_rows * first.shape[1])


@dataclass(frozen=True, eq=False)
class WeightSource:
    """One weight as the engine will hold it, and where its bytes come from.

    convert: name of the file's element type when it is not one the engine computes with and the
    weight is dequantized and stored as `dtype` instead.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]  # uint8 bytes in `dtype`
    release: Callable[[], None]  # the source's pages are no longer needed
    convert: str | None = None

    @property
    def nbytes(self) -> int:
        return self.dtype.array_bytes(self.shape)


@dataclass(frozen=True, eq=False)
class ModelSource:
    """A model before any memory is spent on it.

    notes: what the user should know: conversions, ignored tensors. activity: of random weights made
    so, by layer how probable it is that each neuron fires, float64 [n_ff]. identity: of the file,
    see `GgufFile.identity`. check: raises GgufError when its files are no longer what was opened.
    """

    path: str
    metadata: Mapping[str, Any]
    arch: Architecture
    weights: dict[str, WeightSource]
    notes: tuple[str, ...]
    n_bytes: int
    activity: Callable[[], Sequence[np.ndarray]] | None = None
    identity: Callable[[], str] | None = None
    check: Callable[[], None] = lambda: None


def open_model(path: str | Path, keys: Mapping[str, Any] | None = None) -> ModelSource:
    """Open a GGUF model and check every tensor the architecture needs. keys: values in place of the
    file's; the architecture's name is put before those that begin with a dot.

    Raises GgufError for a bad file, ModelError naming the key or tensor for a model that does not
    fit its architecture.
    """
    f = GgufFile.open(path)
    metadata = f.metadata
    if f.magic == powerinfer.MAGIC:
        metadata = {**metadata, **powerinfer.amended(metadata)}
    if keys:
        arch_name = metadata.get("general.architecture")
        own = {f"{arch_name}{k}" if k.startswith(".") else k: v for k, v in keys.items()}
        metadata = {**metadata, **own}
    embd = f.tensors.get("token_embd.weight")
    try:
        cls = architecture(_arch_name(f.magic, metadata))
    except ModelError as e:
        raise ModelError(f"{path}: {e}") from None
    if embd is None or len(embd.shape) != 2:
        raise ModelError(
            f"{path}: token_embd.weight: missing or not a matrix; is this a whole model "
            "or only a vocabulary?"
        )
    weights: dict[str, WeightSource] = {}
    used: set[str] = set()
    converted: dict[tuple[str, str], int] = {}
    try:
        asked = Asked(metadata)
        arch = cls.from_metadata(asked, embd.shape[0])
        asked.refuse_others(str(metadata["general.architecture"]))
        check_both_ways(arch)
        for spec in arch.weights():
            info = _find(f, spec, cls.name)
            if info is None:
                continue
            source = file_weight(f, info, spec.plain)
            if source.convert and info.name not in used:
                key = source.convert, source.dtype.name
                converted[key] = converted.get(key, 0) + 1
            used.add(info.name)
            if spec.part is not None and _holds(info, spec):
                source = _rows(source, spec)
            weights[source.name] = source
        arch.check({t.name: tuple(t.shape) for t in f.tensors.values()})
    except ModelError as e:
        text = str(e)
        raise ModelError(text if text.startswith(str(path)) else f"{path}: {text}") from None

    notes = [
        f"{n} tensors of type {a} are dequantized to {b} while loading (no kernels for {a})"
        for (a, b), n in sorted(converted.items())
    ]
    if unused := [n for n in f.tensors if n not in used]:
        shown = ", ".join(map(one_line, unused[:4])) + (" ..." if len(unused) > 4 else "")
        notes.append(f"{len(unused)} tensors are not used by {cls.name}: {shown}")
    return ModelSource(
        str(path), metadata, arch, weights, tuple(notes), f.n_bytes, identity=f.identity,
        check=f.check,
    )  # fmt: skip


def _arch_name(magic: str, metadata: Mapping[str, Any]) -> str:
    name = architecture_name(metadata)
    return powerinfer.plain_architecture(name) if magic == powerinfer.MAGIC else name


def _find(f: Any, spec: WeightSpec, arch: str) -> Any:
    """The file's tensor for a weight, for its transposed stand-in or for what it is a part of; None
    if it may be absent."""
    whole = f.tensors.get(spec.part.of) if spec.part else None
    if whole is not None and _holds(whole, spec):
        return whole
    info, shape = f.tensors.get(spec.name), spec.shape
    if info is None and spec.transposed in f.tensors:
        info, shape = f.tensors[spec.transposed], spec.shape[::-1]
    if info is None and whole is not None and spec.part is not None:
        info, shape = whole, spec.part.whole(spec.shape)
    if info is None:
        if spec.optional:
            return None
        others = [n for n in (spec.transposed, spec.part.of if spec.part else "") if n]
        other = f" (or {' or '.join(others)})" if others else ""
        raise ModelError(
            f"tensor {spec.name}{other} is missing; {arch} needs it with shape {list(spec.shape)}"
        )
    if not replace(spec, shape=shape).fits(tuple(info.shape)):
        raise ModelError(
            f"tensor {info.name} has shape {list(info.shape)}, expected "
            f"[{', '.join('any' if n == -1 else str(n) for n in shape)}]"
        )
    return info


def _holds(info: Any, spec: WeightSpec) -> bool:
    """Whether a tensor of the file is the one that the weight may be a part of."""
    part = spec.part
    return part is not None and info.name == part.of and tuple(info.shape) == part.whole(spec.shape)


def _rows(whole: WeightSource, spec: WeightSpec) -> WeightSource:
    """A weight that the file holds as rows of another one: in one piece, or of a stack of matrices
    so many of each."""
    assert spec.part is not None
    start, n, n_rows = spec.part.start, spec.part.rows_of(spec.shape), spec.part.n_rows
    n_matrices = prod(whole.shape[:-2]) if len(whole.shape) > 2 else 1

    def read() -> np.ndarray:
        rows = whole.read().reshape(n_matrices, n_rows, -1)
        return np.ascontiguousarray(rows[:, start : start + n]).reshape(-1)

    assert isinstance(whole.read, FileBytes)
    origin = f"{whole.read.origin} rows {start} {n}"
    return replace(whole, name=spec.name, shape=spec.shape, read=FileBytes(origin, read))


# Types with kernels; every other type is dequantized to one of these while loading.
COMPUTE_TYPES = frozenset(
    ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0",
     "q2_K", "q3_K", "q4_K", "q5_K", "q6_K",
     "iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "tq1_0", "tq2_0",
     "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
)  # fmt: skip


def file_weight(f: Any, info: Any, plain: bool = False) -> WeightSource:
    """A tensor of an opened file as a weight. plain: as float32."""
    name, shape = info.name, tuple(info.shape)
    raw = f.data(name)

    def release() -> None:
        f.advise(name, "dontneed")

    if (plain or len(shape) == 1) and info.dtype.name != "f32":
        # Norms and biases are small; the kernels read them as float32.
        to_f32 = _dequantizer(info)

        def read_f32() -> np.ndarray:
            values = to_f32(raw, shape)
            return np.ascontiguousarray(values, np.float32).view(np.uint8).reshape(-1)

        return WeightSource(name, F32, shape, FileBytes(f"{name} f32", read_f32), release)
    if info.dtype.name in COMPUTE_TYPES:
        return WeightSource(name, info.dtype, shape, FileBytes(name, lambda: raw), release)

    # Q8_0 keeps what a low-bit type holds (its own error is far below theirs) at half F16's size.
    target = dtype_by_name("q8_0") if shape[-1] % 32 == 0 else F16
    dequantize = _dequantizer(info)

    def read_converted() -> np.ndarray:
        out = np.empty(target.array_bytes(shape), np.uint8)
        rows, step = prod(shape[:-1]), 1024
        row_in, row_out = len(raw) // rows, target.row_bytes(shape[-1])
        for r in range(0, rows, step):
            n = min(step, rows - r)
            x = dequantize(raw[r * row_in : (r + n) * row_in], (n, shape[-1]))
            try:
                block = encode(target, x)
            except ValueError as e:
                raise ModelError(f"{info.path}: tensor {name}: {e}") from None
            out[r * row_out : (r + n) * row_out] = block.view(np.uint8).reshape(-1)
        return out

    read = FileBytes(f"{name} {target.name}", read_converted)
    return WeightSource(name, target, shape, read, release, convert=info.dtype.name)


def _dequantizer(info: Any) -> Callable[[np.ndarray, tuple[int, ...]], np.ndarray]:
    """(bytes, shape) -> float32, for the tensor's type. Raises ModelError if there is none."""
    dtype = info.dtype
    if isinstance(dtype, DType) and not dtype.is_integer:
        return partial(decode, dtype)
    try:
        dequantize_any(dtype.ggml_id, np.zeros(dtype.nbytes, np.uint8), (dtype.block,))
    except NotImplementedError:
        raise ModelError(
            f"{info.path}: tensor {info.name}: its type {dtype.name} cannot be read as numbers "
            "to compute with"
        ) from None
    return partial(dequantize_any, dtype.ggml_id)
