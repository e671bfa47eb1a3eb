"""Quantizing a GGUF file: which type each tensor gets, and a copy of the file in those types.

The choices are llama.cpp's (`llama-quantize`), so that a file made here has the types that a user
of the name expects.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np

from gguflow.engine.dataclass import dataclass
from gguflow.engine.gguf import GgufError, GgufFile, TensorInfo, Typed, write_gguf
from gguflow.engine.gguf.errors import show
from gguflow.engine.gguf.keys import INT32_MAX
from gguflow.engine.gguf.tensors import ElementType
from gguflow.engine.graph import DType, dtype_by_name
from gguflow.engine.imatrix import ImportanceMatrix
from gguflow.engine.load import COMPUTE_TYPES, powerinfer
from gguflow.engine.quants import codec
from gguflow.engine.requantize import Converter, convert, convert_weighted
from gguflow.models.mixes import ALIASES, FALLBACKS, KEPT, find_mix, tensor_type

_SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")


class AlreadyQuantized(ValueError):
    """The file's tensors have lost bits already, and nobody said that losing more is fine."""


@dataclass(frozen=True)
class Override:
    """Tensors whose name holds a match of `pattern` take `dtype`, or keep their type when None."""

    pattern: re.Pattern[str]
    dtype: DType | None


@dataclass(frozen=True)
class Change:
    """A tensor and the type it gets; nbytes: in that type."""

    info: TensorInfo
    target: ElementType

    @property
    def nbytes(self) -> int:
        return prod(self.info.shape) // self.target.block * self.target.nbytes

    @property
    def converts(self) -> bool:
        return self.target.ggml_id != self.info.dtype.ggml_id


def plan_changes(
    file: GgufFile,
    mix_name: str,
    pure: bool = False,
    overrides: Sequence[Override] = (),
    weighted: bool = False,
) -> list[Change]:
    """The type every tensor of the file gets under a mix, in file order. Reads no tensor data.

    overrides: the first whose pattern matches decides. weighted: with an importance matrix.
    Raises MixError for an unknown name.
    """
    mix = find_mix(mix_name)
    n_layer, group = _layers(file), _group(file)
    tied = "output.weight" not in file.tensors
    changes = []
    for info in file.tensors.values():
        target: ElementType = info.dtype
        if _is_quantizable(info):
            chosen = next((o for o in overrides if o.pattern.search(info.name)), None)
            if chosen is None:
                target = tensor_type(
                    mix, info.name, info.shape, n_layer, group, tied, pure, weighted
                )
            elif chosen.dtype is not None:
                target = _fitting(chosen.dtype, info.shape[-1])
        changes.append(Change(info, target))
    return changes


def quantize_file(
    file: GgufFile,
    out: str | os.PathLike[str],
    mix_name: str,
    changes: Sequence[Change],
    by: Converter,
    allow_requantize: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
    importance: ImportanceMatrix | None = None,
) -> None:
    """Write the file with the changes made: a slab of one tensor in memory at a time.

    importance: weighs the errors of types whose search can; a file of another model is refused.

    All metadata is kept; general.file_type and general.quantization_version say what was done. The
    new file appears when it is complete. Raises AlreadyQuantized naming a tensor, before anything
    is written; GgufError naming a tensor with values the type cannot hold, or for a failing disk.
    """
    if not allow_requantize:
        for c in changes:
            if c.converts and c.info.dtype.is_quantized:
                raise AlreadyQuantized(
                    f"{file.path}: tensor {show(c.info.name)} is {c.info.dtype.name} already, and "
                    f"making it {c.target.name} would lose more; start from an F32, F16 or BF16 "
                    "file"
                )
    weights = {} if importance is None else matching(file, importance)
    tensors = [
        (c.info.name, (c.target, c.info.shape, _data(file, c, by, weights.get(c.info.name))))
        for c in changes
    ]
    metadata = new_metadata(file, mix_name)
    if importance is not None:
        metadata |= {
            "quantize.imatrix.dataset": Typed("str", ", ".join(importance.datasets)),
            "quantize.imatrix.entries_count": Typed("u32", len(importance.entries)),
            "quantize.imatrix.chunks_count": Typed("u32", importance.n_chunks),
        }
    write_gguf(out, metadata, tensors, file.alignment, progress)


def matching(file: GgufFile, importance: ImportanceMatrix) -> dict[str, np.ndarray]:
    """Mean squares of each tensor's inputs, float32 [matrices, k]. Raises GgufError for entries
    that do not fit the file's tensors, or when there are none."""
    found = {}
    for name, entry in importance.entries.items():
        info = file.tensors.get(name)
        if info is None:
            continue
        matrices, k = prod(info.shape[:-2]), info.shape[-1]
        means = entry.means_of(matrices, k)
        if means is None:
            raise GgufError(
                file.path, f"tensor {show(name)}", f"importance {list(entry.sums.shape)}",
                f"[{matrices}, {k}]",
            )  # fmt: skip
        found[name] = means
    if not found:
        raise GgufError(file.path, "tensors", "none that the importance matrix has", "its model")
    return found


def new_metadata(file: GgufFile, mix_name: str) -> dict[str, Typed]:
    """The file's metadata with the keys that a quantizer sets and without those of shards."""
    from gguf.constants import GGML_QUANT_VERSION

    metadata = {k: v for k, v in file.typed_metadata().items() if k not in _SPLIT_KEYS}
    if file.magic == powerinfer.MAGIC:
        metadata = powerinfer.plain_metadata(metadata)
    metadata["general.quantization_version"] = Typed("u32", GGML_QUANT_VERSION)
    metadata["general.file_type"] = Typed("u32", file_type(mix_name))
    return metadata


def file_type(mix_name: str) -> int:
    """The number of a mix in `general.file_type`."""
    from gguf.constants import LlamaFileType

    name = ALIASES.get(mix_name.upper(), mix_name.upper())
    return int(LlamaFileType["ALL_F32" if name == "F32" else f"MOSTLY_{name}"])


def writable_type(name: str) -> DType:
    """The element type called `name`, if there is a quantizer for it. Raises ValueError."""
    by_name = {t.lower(): t for t in COMPUTE_TYPES if codec(t).writable}
    if name.lower() not in by_name:
        raise ValueError(f"{name}: no type to write; have {', '.join(sorted(by_name.values()))}")
    return dtype_by_name(by_name[name.lower()])


def _is_quantizable(info: TensorInfo) -> bool:
    dense = [n for n in info.shape[:-1] if n > 1]  # a matrix of one row counts as a vector
    integer = isinstance(info.dtype, DType) and info.dtype.is_integer
    return (
        bool(dense)
        and not integer
        and info.name.endswith("weight")
        and not any(part in info.name for part in KEPT)
    )


def _fitting(dtype: DType, n: int) -> DType:
    """`dtype`, or the next one whose block divides rows of n."""
    name = dtype.name
    while n % dtype_by_name(name).block:
        name = FALLBACKS.get(name, "f16")
    return dtype_by_name(name)


def _data(
    file: GgufFile, change: Change, by: Converter, weights: np.ndarray | None
) -> Callable[[], Iterator[np.ndarray]]:
    info, target = change.info, change.target

    def pieces() -> Iterator[np.ndarray]:
        raw = file.data(info.name)
        if change.converts and isinstance(target, DType):
            source = info.dtype if isinstance(info.dtype, DType) else info.dtype.ggml_id
            try:
                if weights is not None and target.is_quantized and codec(target).weighted:
                    yield from convert_weighted(raw, source, target, info.shape, by, weights)
                else:
                    yield from convert(raw, source, target, info.shape, by)
            except (ValueError, NotImplementedError) as e:
                raise GgufError(
                    info.path, f"tensor {show(info.name)}", e, f"values {target.name} can hold"
                ) from None
        else:
            yield raw
        file.advise(info.name, "dontneed")
        file.check()

    return pieces


def _number(file: GgufFile, key: str) -> int:
    """An integer key of the architecture, 0 when it is absent; arrays give their first element."""
    name = f"{file.keys.text('general.architecture', None)}.{key}"
    value = file.keys.find(name)
    if isinstance(value, np.ndarray) and value.size:
        return file.keys.whole(name, value.flat[0], 0, INT32_MAX)
    return file.keys.integer(name, 0)


def _layers(file: GgufFile) -> int:
    return _number(file, "block_count")


def _group(file: GgufFile) -> int:
    """Query heads per KV head."""
    heads = _number(file, "attention.head_count")
    return heads // (_number(file, "attention.head_count_kv") or heads or 1)
