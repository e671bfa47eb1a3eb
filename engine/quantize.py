"""Quantizing a GGUF file: which type each tensor gets, and a copy of the file in those types.

The choices are llama.cpp's (`llama-quantize`), so that a file made here has the types that a user
of the name expects.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gguflow.engine.gguf import GgufError, GgufFile, TensorInfo, Typed, write_gguf
from gguflow.engine.gguf.errors import show
from gguflow.engine.gguf.tensors import ElementType
from gguflow.engine.graph import DType, dtype_by_name
from gguflow.engine.load import COMPUTE_TYPES, powerinfer
from gguflow.engine.requantize import Converter, convert
from gguflow.models.mixes import ALIASES, FALLBACKS, find_mix, tensor_type

# Small, and worth more than the bytes they take; what llama.cpp leaves alone, by part of the name.
_KEPT = (
    "_norm.weight", "ffn_gate_inp.weight", "position_embd", "token_types", "attn_rel_b.weight",
    "ssm_conv1d", "shortconv.conv.weight", "time_mix_", "altup", "laurel", "per_layer_model_proj",
)  # fmt: skip
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
    file: GgufFile, mix_name: str, pure: bool = False, overrides: Sequence[Override] = ()
) -> list[Change]:
    """The type every tensor of the file gets under a mix, in file order. Reads no tensor data.

    overrides: the first whose pattern matches decides. Raises MixError for an unknown name.
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
                target = tensor_type(mix, info.name, info.shape, n_layer, group, tied, pure)
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
) -> None:
    """Write the file with the changes made: a slab of one tensor in memory at a time.

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
    tensors = [(c.info.name, (c.target, c.info.shape, _data(file, c, by))) for c in changes]
    alignment = file.alignment
    write_gguf(out, new_metadata(file, mix_name), tensors, alignment, progress)


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
    by_name = {t.lower(): t for t in COMPUTE_TYPES}
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
        and not any(part in info.name for part in _KEPT)
    )


def _fitting(dtype: DType, n: int) -> DType:
    """`dtype`, or the next one whose block divides rows of n."""
    name = dtype.name
    while n % dtype_by_name(name).block:
        name = FALLBACKS.get(name, "f16")
    return dtype_by_name(name)


def _data(file: GgufFile, change: Change, by: Converter) -> Callable[[], Iterator[np.ndarray]]:
    info, target = change.info, change.target

    def pieces() -> Iterator[np.ndarray]:
        raw = file.data(info.name)
        if change.converts and isinstance(target, DType):
            source = info.dtype if isinstance(info.dtype, DType) else info.dtype.ggml_id
            try:
                yield from convert(raw, source, target, info.shape, by)
            except (ValueError, NotImplementedError) as e:
                raise GgufError(
                    info.path, f"tensor {show(info.name)}", e, f"values {target.name} can hold"
                ) from None
        else:
            yield raw
        file.advise(info.name, "dontneed")

    return pieces


def _number(file: GgufFile, key: str) -> int:
    """An integer key of the architecture, 0 when it is absent; arrays give their first element."""
    value: Any = file.metadata.get(f"{file.metadata.get('general.architecture')}.{key}", 0)
    if isinstance(value, np.ndarray) and value.size:
        value = value.flat[0].item()
    return value if isinstance(value, int) else 0


def _layers(file: GgufFile) -> int:
    return _number(file, "block_count")


def _group(file: GgufFile) -> int:
    """Query heads per KV head."""
    heads = _number(file, "attention.head_count")
    return heads // (_number(file, "attention.head_count_kv") or heads or 1)
